"""gateway/http/accept.py: media ranges are parsed, not searched for."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.http.accept import Accept, Carriage, accept, content_type_ok, single


@pytest.mark.parametrize(
    ("header", "carriage"),
    [
        (None, Carriage.JSON),
        ("", Carriage.JSON),
        (" , ", Carriage.JSON),
        ("*/*", Carriage.JSON),
        ("application/json", Carriage.JSON),
        ("application/*", Carriage.JSON),
        ("application/json, */*", Carriage.JSON),
        ("application/json;charset=utf-8", Carriage.JSON),
        ("text/event-stream", Carriage.SSE),
        ("text/*", Carriage.SSE),
        ("application/x-ndjson", Carriage.NDJSON),
        ("application/json, text/event-stream", Carriage.LATE),
        ("APPLICATION/JSON , Text/Event-Stream", Carriage.LATE),
        ("text/event-stream, application/json;q=1.0", Carriage.LATE),
        ("text/event-stream, */*", Carriage.LATE),
        ("text/event-stream, */*;q=0.1", Carriage.SSE),
        ("application/json;q=0.9, text/event-stream", Carriage.SSE),
        ("application/json, text/event-stream;q=0.9", Carriage.JSON),
        ("application/json;q=0.5, application/x-ndjson", Carriage.NDJSON),
        ("application/json, application/x-ndjson", Carriage.JSON),
        ("application/x-ndjson, text/event-stream", Carriage.SSE),
        ("application/x-ndjson, application/*;q=0.1", Carriage.NDJSON),
        ("*/*, application/json;q=0", Carriage.SSE),
        ("*/*, application/json;q=0, text/event-stream;q=0", Carriage.NDJSON),
        ("application/*, application/json;q=0", Carriage.NDJSON),
        ('application/json;profile="a,text/event-stream;q=1"', Carriage.JSON),
        ("broken, application/json", Carriage.JSON),
        ('text/html;x="unclosed, application/json', None),
        ("application/json;q=2", None),
        ("application/json;q=0", None),
        ("application/json;q=0.000", None),
        ("application/jsonx, text/event-streamer", None),
        ("xapplication/json", None),
        ("application/json-rpc", Carriage.JSON),
        ("application/json-rpc, text/event-stream", Carriage.LATE),
        ("application/ndjson", Carriage.NDJSON),
        ("application/jsonl", Carriage.NDJSON),
        ("application/jsonl, application/json;q=0.5", Carriage.NDJSON),
        ("application/jsonl;q=0", None),
        ("text/html", None),
        ("application", None),
        ("*/json", None),
    ],
)
def test_negotiation(header, carriage):
    assert accept(header).carriage is carriage


@pytest.mark.parametrize(
    ("header", "json_only", "both"),
    [
        (None, False, True),
        ("*/*", False, True),
        ("application/json", True, False),
        ("Application/JSON; charset=utf-8", True, False),
        ("application/json, text/plain", True, False),
        ("application/json, */*;q=0", True, False),
        ("application/json, text/event-stream;q=0", True, False),
        ("application/json;q=0, application/*", False, False),
        ("application/*", False, False),
        ("application/json, */*;q=0.1", False, True),
        ("application/json, */*, text/event-stream;q=0", False, False),
        ("application/json, text/*", False, True),
        ("application/json, text/event-stream", False, True),
        ("text/event-stream", False, False),
        ("text/event-stream, text/html", False, False),
        ("text/event-stream, application/json;q=0.1", False, True),
        ("application/x-ndjson", False, False),
        ("application/x-ndjson, text/event-stream;q=0.1", False, False),
        ("application/json-rpc", False, False),
    ],
)
def test_which_forms_a_client_admits(header, json_only, both):
    accepted = accept(header)
    assert (accepted.json_only, accepted.both) == (json_only, both)


@pytest.mark.parametrize(
    ("header", "renamed"),
    [
        ("application/json-rpc", {b"application/json": b"application/json-rpc"}),
        ("application/jsonl", {b"application/x-ndjson": b"application/jsonl"}),
        ("application/ndjson", {b"application/x-ndjson": b"application/ndjson"}),
        ("application/json-rpc, application/json", {}),
        ("application/jsonl, application/x-ndjson", {}),
        ("application/jsonl;q=0.5, application/x-ndjson", {}),
        ("*/*", {}),
        (None, {}),
    ],
)
def test_a_client_is_answered_under_the_name_that_it_uses(header, renamed):
    assert accept(header).renamed == renamed


ranges = st.sampled_from(
    ["application/json", "text/event-stream", "application/x-ndjson", "application/*", "text/*", "*/*", "text/html"]
)
members = st.tuples(ranges, st.sampled_from([None, 0, 250, 500, 1000]), st.sampled_from(["", ";a=b", ' ; a="x,y\\"z"']))


def write(member: tuple[str, int | None, str], upper: bool, space: str) -> str:
    media, quality, parameter = member
    text = (media.upper() if upper else media) + parameter
    if quality is not None:
        text += f"{space};{space}{'Q' if upper else 'q'}={quality / 1000:.3f}"
    return space + text


def reference(sent) -> Carriage | None:
    """The table of the design, from the members themselves."""

    def quality(media: str) -> int:
        for wanted in (media, media.split("/")[0] + "/*", "*/*"):
            found = [1000 if q is None else q for name, q, _ in sent if name == wanted]
            if found:
                return max(found)
        return 0

    if not sent:
        return Carriage.JSON
    json, sse, ndjson = quality("application/json"), quality("text/event-stream"), quality("application/x-ndjson")
    asked_for_sse = any(name in ("text/event-stream", "text/*") and q != 0 for name, q, _ in sent)
    best = max(json, sse, ndjson)
    if not best:
        return None
    if json == sse == best and asked_for_sse:
        return Carriage.LATE
    return next(
        carriage for carriage, q in ((Carriage.JSON, json), (Carriage.SSE, sse), (Carriage.NDJSON, ndjson)) if q == best
    )


@given(st.lists(members, max_size=6), st.booleans(), st.sampled_from(["", " ", " \t"]))
def test_negotiation_follows_the_reference(sent, upper, space):
    header = ",".join(write(member, upper, space) for member in sent)
    assert accept(header).carriage is reference(sent)


@given(st.text(alphabet='a/*;q=0.1,"\\ \t\x00é', max_size=40))
def test_any_text_is_read(header):
    assert isinstance(accept(header), Accept)


@pytest.mark.parametrize(
    "header",
    [
        'a/b;x="' + '\\"' * 32_000,
        '"\\' * 32_000,
        'a/b;q="a,' * 7_000,
        "a/b" + ";a=1" * 16_000,
        "," * 65_000,
        "a/b" * 20_000,
    ],
)
def test_hostile_headers_are_read_in_no_time(header):
    started = time.process_time()
    accept(header)
    content_type_ok(header)
    assert time.process_time() - started < 0.5


def test_one_message_needs_no_late_commit():
    assert single(Carriage.LATE) is Carriage.JSON
    for carriage in (Carriage.JSON, Carriage.SSE, Carriage.NDJSON):
        assert single(carriage) is carriage


@pytest.mark.parametrize(
    ("value", "ok"),
    [
        ("application/json", True),
        ("Application/JSON", True),
        ("application/json-rpc", True),
        ("application/json; charset=utf-8", True),
        ('application/json;charset="UTF-8"', True),
        ("application/json;", True),
        ("application/json; profile=x", True),
        (None, False),
        ("", False),
        ("text/plain", False),
        ("application/jsonx", False),
        ("application/json-patch+json", False),
        ("application/json; charset=euc-kr", False),
        ("application/json, application/json", False),
        ("application/json charset=utf-8", False),
        ("*/*", False),
    ],
)
def test_content_types(value, ok):
    assert content_type_ok(value) is ok
