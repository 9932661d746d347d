"""Manifests as files: what YAML becomes as JSON, what is refused, and where the refusal points."""

import json

import pytest

from naru_cli import manifest_file
from naru_cli.manifest_file import ManifestError, Place


def text_of(source: str | bytes, **variables: str) -> str:
    data = source.encode() if isinstance(source, str) else source
    return manifest_file.parse(data, variables).text.decode()


def faults_of(source: str | bytes, **variables: str) -> list[manifest_file.Fault]:
    with pytest.raises(ManifestError) as caught:
        text_of(source, **variables)
    return caught.value.faults


def test_numbers_keep_their_digits():
    source = "[9007199254740993, 1.0, 1.50e2, 1E+2, 12e3, -0, -0.0, 0.1000]"
    assert text_of(source) == "[9007199254740993,1.0,1.50e2,1E+2,12e3,-0,-0.0,0.1000]"


def test_scalars_are_those_of_yaml_1_2():
    source = "{a: no, b: 2024-01-01, c: 12:30:00, d: 1_000, e: yes, f: true, g: ~, h: , i: Null, j: off, k: 1.0.0}"
    assert json.loads(text_of(source)) == {
        "a": "no",
        "b": "2024-01-01",
        "c": "12:30:00",
        "d": "1_000",
        "e": "yes",
        "f": True,
        "g": None,
        "h": None,
        "i": None,
        "j": "off",
        "k": "1.0.0",
    }


def test_quoted_and_tagged_scalars_are_strings():
    assert text_of("[\"1\", 'true', !!str 1.0, 'null']") == '["1","true","1.0","null"]'
    assert text_of("a: |\n  one\n  two\nb: >-\n  one\n  two\n") == '{"a":"one\\ntwo\\n","b":"one two"}'


def test_keys_stay_in_order_and_become_strings():
    assert text_of("z: 1\n1: a\ntrue: b\na: 2\n") == '{"z":1,"1":"a","true":"b","a":2}'


def test_text_beyond_ascii_is_kept():
    assert text_of('a: 안녕 😀\n"b": "\\u0000 \\U0001F600"\n') == '{"a":"안녕 😀","b":"\\u0000 😀"}'


def test_aliases_are_written_out():
    assert text_of("a: &x {b: [1, 2]}\nc: *x\n") == '{"a":{"b":[1,2]},"c":{"b":[1,2]}}'


def test_an_unquoted_version_keeps_its_digits_as_a_string():
    source = "tools:\n- {name: a, version: 1.10, inputSchema: {version: 1.10}}\n- {version: 2}\n"
    assert text_of(source) == (
        '{"tools":[{"name":"a","version":"1.10","inputSchema":{"version":1.10}},{"version":"2"}]}'
    )


def test_variables_are_filled_in_below_endpoint_and_nowhere_else():
    source = """
tools:
- description: costs ${URL}
  inputSchema: {properties: {endpoint: {description: "like ${HOME}"}}}
  endpoint:
    production: {url: "${URL}/a/{id}?x=${X}", headers: {X-Key: "${secret:key}", X-Plain: "${X}"}}
"""
    tool = json.loads(text_of(source, URL="http://tools", X="1"))["tools"][0]
    assert tool["description"] == "costs ${URL}"
    assert tool["inputSchema"]["properties"]["endpoint"]["description"] == "like ${HOME}"
    assert tool["endpoint"]["production"] == {
        "url": "http://tools/a/{id}?x=1",
        "headers": {"X-Key": "${secret:key}", "X-Plain": "1"},
    }


def test_a_variable_without_a_value_is_a_fault_with_its_place():
    (fault,) = faults_of("tools:\n- endpoint:\n    production: {url: '${DEMO_URL}/a'}\n")
    assert fault.place == Place(3, 23)
    assert "--set DEMO_URL=" in fault.message


@pytest.mark.parametrize("number", ["010", "+1", ".5", "5.", "0x1F", "0o17", ".inf", "-.inf", ".NaN", "1.e3", "-01"])
def test_numbers_that_json_writes_otherwise_are_refused(number):
    (fault,) = faults_of(f"a: 1\nb: {number}\n")
    assert fault.place == Place(2, 4)
    assert number in fault.message


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", Place(3, 1), "'a' is here a second time; the first is in line 1"),
        ("a:\n  x: 1\n  'x': 2\n", Place(3, 3), "second time"),
        ("a: {'1': 1, 1: 2}\n", Place(1, 13), "second time"),
        ("a: [1, 2\n", Place(2, 1), "','"),
        ("a: b: c\n", Place(1, 5), "mapping values are not allowed"),
        ("a:\n\tb: 1\n", Place(2, 1), "cannot start any token"),
        ("a: !!binary aGk=\n", Place(1, 4), "!!binary"),
        ("a: !!set {x}\n", Place(1, 4), "!!set"),
        ("a: !python/name:os.system x\n", Place(1, 4), "!python"),
        ("a: *nothing\n", Place(1, 4), "undefined alias"),
        ("a: 1\n---\nb: 2\n", Place(2, 1), "another document"),
        ("a: &x {b: 1}\nc: {<<: *x}\n", Place(2, 5), "<<"),
        ("? [a, b]\n: 1\n", Place(1, 3), "plain name"),
        ('a: "\\ud83d"\n', Place(1, 7), "invalid Unicode character escape"),
        ("a: &x [*x]\n", Place(1, 4), "inside its own anchor"),
        ("a: \x01\n", None, "line 1 holds the character U+0001"),
        ("", None, "empty"),
        ("# nothing\n", None, "empty"),
        (b"a: 1\nb: \xff\n", None, "line 2 is not UTF-8"),
        ("[" * 20_000, Place(1, 1001), "maximum nesting depth"),
        ("- " * 20_000, Place(1, 1999), "maximum nesting depth"),
    ],
)
def test_what_is_no_manifest_is_refused_with_its_place(source, place, words):
    (fault,) = faults_of(source)
    assert fault.place == place
    assert words in fault.message


def test_every_fault_is_told():
    faults = faults_of("a: 010\nb: {x: 1, x: 2}\nc: !!binary aa\n")
    assert [fault.place for fault in faults] == [Place(1, 4), Place(2, 11), Place(3, 4)]


def test_a_fault_that_an_alias_repeats_is_told_once():
    assert len(faults_of("a: &x {n: 010}\nb: *x\n")) == 1


def test_aliases_cannot_make_a_giant_of_a_small_file():
    levels = [f"a{level}: &a{level} [{','.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)]
    faults = faults_of("\n".join(["a0: &a0 [x,x,x,x,x,x,x,x,x]", *levels]))
    assert "aliases" in faults[-1].message


def test_places_are_found_by_json_pointer():
    manifest = manifest_file.parse(b"tools:\n- name: a\n  x/y~z:\n    - 1\n", {})
    assert manifest.places["/tools/0/name"] == Place(2, 9)
    assert manifest.places["/tools/0/x~1y~0z/0"] == Place(4, 7)


def test_a_json_file_is_passed_on_as_it_is(tmp_path):
    path = tmp_path / "tools.json"
    path.write_bytes(b'{\n\t"tools": [ {"x": 1.0, "y": "\\ud83d\\ude00"} ] }')
    assert manifest_file.read(path, {}).text == path.read_bytes()


def test_variables_that_fill_nothing_are_known():
    source = b"tools:\n- {description: '${A} ${B}', endpoint: {production: {url: 'http://${B}/${C}'}}}\n"
    assert manifest_file.parse(source, {"A": "1", "B": "2", "C": "3", "D": "4"}).unused == ("A", "D")


@pytest.mark.parametrize(("text", "variables"), [('{"a": 1', {}), ('{"a": NaN}', {}), ("{}", {"DEMO_URL": "x"})])
def test_a_json_file_that_is_no_json_or_wants_variables_is_refused(tmp_path, text, variables):
    path = tmp_path / "tools.json"
    path.write_text(text)
    with pytest.raises(ManifestError):
        manifest_file.read(path, variables)
