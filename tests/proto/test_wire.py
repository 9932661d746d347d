"""Failures in trailers, as both sides write and read them."""

import json

import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from naru.v1 import wire

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abcdefgh_", min_size=1, max_size=10), JSON, max_size=5))
def test_facts_keep_their_types(facts):
    assert wire.unpack_facts(wire.pack_facts(facts)) == facts


def test_a_fact_that_is_not_json_text_is_left_out():
    assert wire.unpack_facts({"a": "1", "b": '["x"]', "c": "not json"}) == {"a": 1, "b": ["x"]}


def test_a_status_says_what_failed():
    packed = wire.pack_status(14, "not now", "SERVICE_UNAVAILABLE", {"cause": "starting"})
    assert wire.unpack_status([("other", "x"), (wire.STATUS_KEY, packed)]) == (
        "SERVICE_UNAVAILABLE",
        {"cause": "starting"},
    )
    status = status_pb2.Status.FromString(packed)
    assert (status.code, status.message) == (14, "not now")


@pytest.mark.parametrize("size", [4_500, 6_000, 1_000_000])
def test_the_largest_facts_give_way_to_the_limit_of_trailers(size):
    facts = {"large": "나" * (size // 3), "violations": [{"pointer": "/a"}]}
    packed = wire.pack_status(3, "x", "ARGUMENTS_INVALID", facts)
    assert len(packed) < 6_000
    found = wire.unpack_status([(wire.STATUS_KEY, packed)])
    assert found is not None
    assert found.facts["violations"] == [{"pointer": "/a"}]
    assert ("large" in found.facts) == (len(json.dumps(facts["large"], ensure_ascii=False).encode()) < 5_000)


def foreign(domain: str) -> bytes:
    status = status_pb2.Status()
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason="INTERNAL", domain=domain))
    return bytes(status.SerializeToString())


@pytest.mark.parametrize(
    "trailers",
    [
        None,
        (),
        ((wire.STATUS_KEY, b"\xff\xff"),),
        ((wire.STATUS_KEY, b""),),
        ((wire.STATUS_KEY, "text"),),
        ((wire.STATUS_KEY, foreign("example.com")),),
        (("x-other", foreign(wire.DOMAIN)),),
    ],
)
def test_trailers_of_others_say_nothing(trailers):
    assert wire.unpack_status(trailers) is None
