import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from naru.v1 import registry_pb2
from registry_service.tools.definition import Definition, parse_definition
from registry_service.tools.definition_lint import Site
from registry_service.tools.manifest import MAX_FAULTS, Entry, Known, manifest_warnings, plan_steps, read_manifest
from tests.support.samples import arguments, definition, nested, raw

PLANS = ["lite", "pro"]
Change = registry_pb2.ApplyManifestResponse.Change


def entry(name="stats", version="1.0", **changes):
    return {"name": name, "version": version, **definition(**changes)}


def manifest(*entries):
    return raw({"tools": entries})


def entries_of(*entries):
    found, faults = read_manifest(manifest(*entries), PLANS)
    assert faults == []
    return found


def faults_of(*entries):
    return [(fault.pointer, fault.tool) for fault in read_manifest(manifest(*entries), PLANS)[1]]


def known(**tools):
    """Versions by tool: `{"1.0": "active"}`, where a state is active, inactive or deleted."""
    document = parsed(definition()).document
    return {
        tool: {
            Version(version): Known(version, document, state == "active", state == "deleted")
            for version, state in versions.items()
        }
        for tool, versions in tools.items()
    }


def parsed(value) -> Definition:
    found = parse_definition(raw(value))
    assert isinstance(found, Definition)
    return found


def actions(entries, rows):
    steps = plan_steps(entries, [], rows)
    assert steps.faults == []
    return [(change.tool, change.version, Change.Action.Name(change.action)) for change in steps.changes]


def test_reads_entries_in_order():
    first, second = entries_of(entry(active=True), entry("echo", "v2.00", title="t") | {"active": False})
    assert first == Entry("/tools/0", "stats", Version("1.0"), True, parsed(definition()))
    assert (second.pointer, second.tool, str(second.version), second.active) == ("/tools/1", "echo", "2.0", False)
    assert entries_of(entry())[0].active is None
    assert entries_of() == []


def test_the_definition_is_the_entry_without_its_head_text_for_text():
    text = b"""{"tools": [ {"version": "1.0", "description" : "\\u00e9", "active": true,
        "inputSchema": {"type":"object", "maxProperties": 1.0}, "name": "a",
        "endpoint": {"production": {"url":"http://a.test"}} } ]}"""
    found, faults = read_manifest(text, PLANS)
    assert faults == []
    assert found[0].definition.document == (
        b'{"description":"\\u00e9","inputSchema":{"type":"object","maxProperties":1.0},'
        b'"endpoint":{"production":{"url":"http://a.test"}}}'
    )


@pytest.mark.parametrize(
    "text",
    [b"", b"[]", b"{}", b"null", b'{"tools":{}}', b'{"tools":null}', b'{"tools":[],"tools":[]}', b"\xff", b"[" * 9000],
)
def test_refuses_what_is_no_manifest(text):
    found, faults = read_manifest(text, PLANS)
    assert found == []
    assert [fault.pointer for fault in faults] == [""]


def test_an_unknown_member_of_the_manifest_is_named():
    _, faults = read_manifest(b'{"tools":[],"version":"1"}', PLANS)
    assert faults == [("/version", "", '"version" is not a member of a manifest')]


def test_every_fault_of_every_entry_is_told():
    assert faults_of(
        entry(),
        entry("bad name", "1.0", description=""),
        entry("echo", 1.1),
        entry("echo", "1.0", endpoint={"production": {"url": "http://a.test/{user"}}) | {"retries": 1},
        "x",
        entry("echo", "2.0") | {"active": None},
        {"active": "yes"},
        entry("echo", "3.0", access={"plans": ["gold"]}),
    ) == [
        ("/tools/1/name", ""),
        ("/tools/1/description", ""),
        ("/tools/2/version", "echo"),
        ("/tools/3/retries", "echo"),
        ("/tools/3/endpoint/production/url", "echo"),
        ("/tools/4", ""),
        ("/tools/5/active", "echo"),
        *[("/tools/6/name", ""), ("/tools/6/version", ""), ("/tools/6/active", "")],
        *[("/tools/6", "")] * 3,
        ("/tools/7/access/plans/0", "echo"),
    ]


def test_a_deep_schema_is_refused_with_its_place():
    assert faults_of(entry("deep", inputSchema=nested(65))) == [("/tools/0/inputSchema" + "/properties/a" * 32, "deep")]
    assert faults_of(entry("deep", inputSchema=nested(90)))[0][0].startswith("/tools/0/inputSchema/properties/a")
    assert faults_of(entry("deep", inputSchema=json.loads('{"a":' * 800 + "1" + "}" * 800)))


def test_one_version_cannot_stand_twice_nor_two_be_active():
    twice = faults_of(entry(), entry("echo"), entry("stats", "v1.0.0"))
    assert twice == [("/tools/2", "stats")]
    both = faults_of(entry(active=True), entry("stats", "2.0") | {"active": True}, entry("echo") | {"active": True})
    assert both == [("/tools/1/active", "stats")]


@pytest.mark.parametrize(
    ("active", "before", "action", "after"),
    [
        (None, {}, "CREATED", []),
        (False, {}, "CREATED", []),
        (True, {}, "CREATED_AND_ACTIVATED", ["2.0"]),
        (None, {"1.0": "active"}, "CREATED", ["1.0"]),
        (True, {"1.0": "active", "1.5": "active"}, "CREATED_AND_ACTIVATED", ["2.0"]),
        (None, {"2.0": "inactive"}, "UNCHANGED", []),
        (None, {"2.0": "active", "1.0": "active"}, "UNCHANGED", ["1.0", "2.0"]),
        (True, {"2.0": "active"}, "UNCHANGED", ["2.0"]),
        (True, {"2.0": "active", "1.0": "active"}, "UNCHANGED", ["2.0"]),
        (True, {"2.0": "inactive", "1.0": "active"}, "ACTIVATED", ["2.0"]),
        (False, {"2.0": "active", "1.0": "active"}, "DEACTIVATED", ["1.0"]),
        (False, {"2.0": "inactive", "1.0": "active"}, "UNCHANGED", ["1.0"]),
    ],
)
def test_what_an_entry_does(active, before, action, after):
    given_entry = entry("stats", "2.0") | ({} if active is None else {"active": active})
    steps = plan_steps(entries_of(given_entry), [], known(stats=before))
    assert [Change.Action.Name(change.action) for change in steps.changes] == [action]
    active_before = {version for version, state in before.items() if state == "active"}
    started, stopped = ({version for _, version in keys} for keys in (steps.activated, steps.deactivated))
    assert sorted((active_before | started) - stopped) == after
    assert [str(created.version) for created in steps.created] == (["2.0"] if action.startswith("CREATED") else [])


def test_a_switch_within_one_manifest_is_told_for_both():
    found = entries_of(entry(), entry("stats", "2.0") | {"active": True})
    assert actions(found, known(stats={"1.0": "active"})) == [
        ("stats", "1.0", "DEACTIVATED"),
        ("stats", "2.0", "CREATED_AND_ACTIVATED"),
    ]


def test_a_known_version_keeps_its_spelling():
    found = entries_of(entry("stats", "v2.0.0") | {"active": True})
    steps = plan_steps(found, [], known(stats={"2.0": "inactive"}))
    assert [(change.tool, change.version) for change in steps.changes] == [("stats", "2.0")]
    assert (steps.created, steps.activated) == ([], {("stats", "2.0")})


def test_a_known_version_must_have_the_same_definition():
    rows = known(stats={"1.0": "active"})
    reordered = dict(reversed(entry().items()))
    assert actions(entries_of(reordered), rows) == [("stats", "1.0", "UNCHANGED")]
    for changed in (entry(title="t"), entry(inputSchema=arguments()), entry(timeout=10)):
        steps = plan_steps(entries_of(changed), [], rows)
        assert [(fault.pointer, fault.tool) for fault in steps.faults] == [("/tools/0", "stats")]
        assert "another definition" in steps.faults[0].message
    digits = known(stats={"1.0": "active"})
    digits["stats"][Version("1.0")] = Known("1.0", parsed(definition(timeout=10)).document, True, False)
    assert plan_steps(entries_of(entry(timeout=10)), [], digits).faults == []
    assert plan_steps(entries_of(entry(timeout=10.0)), [], digits).faults


def test_a_deleted_number_is_never_used_again():
    steps = plan_steps(entries_of(entry("stats", "1.0.0")), [], known(stats={"1.0": "deleted"}))
    assert [(fault.pointer, fault.tool) for fault in steps.faults] == [("/tools/0/version", "stats")]


def test_faults_of_both_kinds_are_told_together_and_nothing_is_done():
    found, faults = read_manifest(manifest(entry(title="t"), entry("echo", description="")), PLANS)
    steps = plan_steps(found, faults, known(stats={"1.0": "active"}))
    assert [fault.pointer for fault in steps.faults] == ["/tools/1/description", "/tools/0"]
    assert (steps.changes, steps.created, steps.activated, steps.deactivated) == ([], [], set(), set())


def test_faults_are_bounded():
    found, faults = read_manifest(manifest(*[entry(f"t{n}", description="") for n in range(150)]), PLANS)
    assert len(faults) == 150
    assert len(plan_steps(found, faults, {}).faults) == MAX_FAULTS


names = st.sampled_from(["a", "b", "c"])
versions = st.sampled_from(["1.0", "1.1", "2.0", "10.0"])
states = st.dictionaries(names, st.dictionaries(versions, st.sampled_from(["active", "inactive"]), max_size=4))
heads = st.lists(
    st.tuples(names, versions, st.sampled_from([True, False, None])), max_size=6, unique_by=lambda head: head[:2]
)


def carried_out(rows, steps):
    result = {(tool, str(version)): row.active for tool, versions in rows.items() for version, row in versions.items()}
    result |= {(created.tool, str(created.version)): False for created in steps.created}
    result |= dict.fromkeys(steps.activated, True)
    return result | dict.fromkeys(steps.deactivated, False)


@given(heads, states)
def test_a_manifest_does_what_it_says_and_again_nothing(heads, states):
    written = [entry(name, version) | ({} if active is None else {"active": active}) for name, version, active in heads]
    found, faults = read_manifest(manifest(*written), PLANS)
    chosen = [name for name, _, active in heads if active]
    if len(set(chosen)) < len(chosen):
        assert faults
        return
    rows = known(**states)
    steps = plan_steps(found, faults, rows)
    after = carried_out(rows, steps)
    for name, version, active in heads:
        if active:
            assert [key[1] for key, is_active in after.items() if key[0] == name and is_active] == [version]
        elif active is False:
            assert after[name, version] is False
    named = {name for name, _, _ in heads}
    before = carried_out(rows, plan_steps([], [], rows))
    # Nothing is pruned, and tools that are not named stay as they are.
    assert before.keys() <= after.keys()
    assert all(after[key] == state for key, state in before.items() if key[0] not in named)
    again = {name: dict(versions) for name, versions in rows.items()}
    document = parsed(definition()).document
    for (name, version), state in after.items():
        again.setdefault(name, {})[Version(version)] = Known(version, document, state, False)
    repeated = plan_steps(found, [], again)
    assert {change.action for change in repeated.changes} <= {Change.UNCHANGED}
    assert (repeated.created, repeated.activated, repeated.deactivated) == ([], set(), set())


SITE = Site(60.0, {"known"}.__contains__)


def warned(*entries, site=SITE):
    return [(warning.pointer, warning.tool) for warning in manifest_warnings(entries_of(*entries), site)]


def test_what_is_right_is_not_warned_of():
    production = {"url": "http://a.test/?k=${secret:known}", "headers": {"X-Key": "${secret:known}"}}
    hints = {"title": "t", "readOnlyHint": True, "openWorldHint": False}
    assert warned(entry("x" * 64, timeout="1m", annotations=hints, endpoint={"production": production})) == []


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"timeout": "2h"}, "/timeout"),
        ({"timeout": 61}, "/timeout"),
        ({"annotations": {"readonlyHint": True}}, "/annotations/readonlyHint"),
        ({"icons": [{"src": "https://a.test/i.png", "mimetype": "image/png"}]}, "/icons/0/mimetype"),
        ({"inputSchema": arguments() | {"requried": []}}, "/inputSchema/requried"),
        ({"outputSchema": {"typ": "object"}}, "/outputSchema/typ"),
        ({"endpoint": {"real_test": {"url": "http://a.test/?k=${secret:lost}"}}}, "/endpoint/real_test/url"),
        (
            {"endpoint": {"production": {"url": "http://a.test/", "headers": {"X-Key": "a ${secret:lost}"}}}},
            "/endpoint/production/headers/X-Key",
        ),
    ],
)
def test_a_slip_is_warned_of_with_its_place(changes, pointer):
    assert warned(entry(), entry("slip", **changes)) == [(f"/tools/1{pointer}", "slip")]


@pytest.mark.parametrize("name", ["graph.list", "x" * 65])
def test_a_name_that_some_clients_refuse_is_warned_of(name):
    assert warned(entry(name)) == [("/tools/0/name", name)]


def test_a_hint_that_was_meant_is_named():
    (warning,) = manifest_warnings(entries_of(entry(annotations={"readonlyHint": True})), SITE)
    assert warning.message == '"readonlyHint" isn\'t a hint of MCP; is readOnlyHint meant?'


def test_a_process_that_runs_no_calls_says_nothing_of_secrets():
    production = {"url": "http://a.test/?k=${secret:lost}"}
    assert warned(entry(endpoint={"production": production}), site=Site(60.0, None)) == []


def test_warnings_are_bounded():
    slips = arguments(**{f"p{number}": {f"unknown{number}": 1} for number in range(80)})
    assert len(warned(entry(inputSchema=slips), entry("b", inputSchema=slips))) == MAX_FAULTS


@pytest.mark.parametrize(
    ("value", "question"),
    [
        (entry() | {"inputschema": {}}, "is inputSchema meant?"),
        (entry(endpoint={"production": {"header": {}, "url": "http://a.test/"}}), "is headers meant?"),
        (entry(access={"plan": ["pro"], "plans": ["pro"]}), "is plans meant?"),
    ],
)
def test_a_member_that_was_meant_is_named(value, question):
    _, faults = read_manifest(manifest(value), PLANS)
    assert [fault for fault in faults if fault.message.endswith(question)]
