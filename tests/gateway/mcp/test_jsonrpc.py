"""gateway/mcp/jsonrpc.py: what is accepted, what is refused, and that everything accepted stays as sent."""

import json
from contextlib import suppress
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.mcp.jsonrpc import Message, ProtocolError, Response, decode, error, is_id, notification, obj, result


def refusal(body: bytes) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        decode(body)
    return caught.value


# --- the envelope ---------------------------------------------------------------------------------------------------


def test_a_request_a_notification_and_a_response():
    assert decode(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}') == Message(b"1", "tools/list", b"{}")
    assert decode(b'{"method":"notifications/x","jsonrpc":"2.0","params":{"a" : 1.0}}') == Message(
        None, "notifications/x", b'{"a" : 1.0}'
    )
    assert decode(b'{"jsonrpc":"2.0","id":"a","result":{}}') == Response(b'"a"')
    assert decode(b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}') == Response(None)
    assert decode(b'{"jsonrpc":"2.0","error":{"code":1,"message":"x"}}') == Response(None)


@pytest.mark.parametrize(
    ("body", "known_id"),
    [
        (b"null", None),
        (b'"x"', None),
        (b"1", None),
        (b"[]", None),
        (b"[1]", None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]', None),
        (b' \n[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"ping"}]', None),
        (b"{}", None),
        (b'{"id":7,"method":"ping"}', b"7"),
        (b'{"jsonrpc":"1.0","id":"seven","method":"ping"}', b'"seven"'),
        (b'{"jsonrpc":2.0,"id":7,"method":"ping"}', b"7"),
        (b'{"jsonrpc":"2.0","id":0}', b"0"),
        (b'{"jsonrpc":"2.0","id":0,"method":null}', b"0"),
        (b'{"jsonrpc":"2.0","id":0,"method":5}', b"0"),
        (b'{"jsonrpc":"2.0","id":0,"method":"ping","result":{}}', b"0"),
        (b'{"jsonrpc":"2.0","id":0,"result":{},"error":{}}', b"0"),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":[1],"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1e-3,"method":"ping"}', None),
        (b'{"jsonrpc":"2.0","id":1.5,"result":{}}', None),
    ],
)
def test_what_is_not_one_message_is_an_invalid_request_with_the_id_if_it_is_one(body, known_id):
    refused = refusal(body)
    assert (refused.reason, refused.id, refused.status) == ("INVALID_REQUEST", known_id, 400)


@pytest.mark.parametrize("params", [b"[]", b"null", b'"x"', b"1", b"[{}]", b"false"])
def test_params_must_be_an_object(params):
    refused = refusal(b'{"jsonrpc":"2.0","id":"a","method":"tools/call","params":%b}' % params)
    assert (refused.reason, refused.id, refused.status) == ("INVALID_PARAMS", b'"a"', 200)


@pytest.mark.parametrize("rest", [b'"method":"ping"', b'"method":5', b'"result":{}', b'"method":"ping","result":{}'])
@pytest.mark.parametrize("id_token", [b'"%b"' % (b"x" * 4094), b"1" * 4096, b"1.%b" % (b"0" * 4094)])
def test_an_id_is_bounded_and_one_that_is_too_long_is_not_repeated(id_token, rest):
    body = b'{"jsonrpc":"2.0","id":%b,%b}'
    with suppress(ProtocolError):  # another fault
        assert decode(body % (id_token, rest)).id == id_token
    refused = refusal(body % (id_token[:-1] + b"0" + id_token[-1:], rest))
    assert (refused.reason, refused.id, refused.status) == ("INVALID_REQUEST", None, 400)
    assert refused.detail == "id must not be longer than 4096 bytes"


def test_what_is_said_of_a_body_quotes_nothing_of_it():
    for body in (
        b'{"jsonrpc":"s3cret","id":1,"method":"m"}',
        b'{"jsonrpc":"2.0","id":1,"method":["s3cret"]}',
        b'["s3cret"]',
    ):
        assert "s3cret" not in str(refusal(body))


# --- ids and digits -------------------------------------------------------------------------------------------------

number_tokens = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,2})?", fullmatch=True)


@given(number_tokens)
@example("1.0")
@example("1e3")
@example("-0")
@example("10e-1")
@example("0.000e-99")
@example("9007199254740993")
def test_a_number_is_an_id_exactly_where_it_has_no_fraction(token):
    assert is_id(token.encode()) == (Decimal(token) == Decimal(token).to_integral_value())


@pytest.mark.parametrize(
    ("token", "integral"),
    [
        ("1e99999999999999999999", True),
        ("1e-99999999999999999999", False),
        ("0e-99999999999999999999", True),
        ("1e-00000000000000000000", True),
        ("100e-00000000000000000000002", True),
        ("1E+0000000000000000000005", True),
    ],
)
def test_exponents_beyond_reason_are_judged_without_computing_them(token, integral):
    assert is_id(token.encode()) is integral


id_tokens = (
    number_tokens.filter(lambda token: is_id(token.encode()))
    | st.text().map(json.dumps)
    | st.text().map(lambda text: json.dumps(text, ensure_ascii=False))
)


@given(id_tokens, st.lists(number_tokens, max_size=5), st.sampled_from(["", " ", "\n\t "]))
@example('""', ["9007199254740993", "1.0", "1E400", "-0"], "")
def test_ids_and_arguments_survive_byte_for_byte(id_token, numbers, space):
    arguments = '{"n":[' + f"{space},{space}".join(numbers) + "]}"
    params = f'{{"arguments":{space}{arguments},"name":"x","unknown":[1e5]}}'
    body = f'{{"method":"m",{space}"params":{space}{params}{space},"id":{space}{id_token},"jsonrpc":"2.0"}}'.encode()
    message = decode(body)
    assert message == Message(id_token.encode(), "m", params.encode())
    assert isinstance(message, Message)
    assert message.id is not None
    assert b'"id":' + id_token.encode() + b"," in result(message.id, b"{}")
    assert b'"id":' + id_token.encode() + b"," in error(message.id, -32603, "x")


# --- shapes ---------------------------------------------------------------------------------------------------------


def test_response_shapes():
    assert json.loads(result(b"1", b'{"a":1.0}')) == {"jsonrpc": "2.0", "id": 1, "result": {"a": 1.0}}
    assert json.loads(error(b'"a"', -32602, "안 됨", {"reason": "X"})) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32602, "message": "안 됨", "data": {"reason": "X"}},
    }
    assert json.loads(error(None, -32700, "x")) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "x"},
    }
    assert json.loads(error(b"", -32600, "x")) == {"jsonrpc": "2.0", "error": {"code": -32600, "message": "x"}}
    assert json.loads(notification("notifications/progress", b'{"a":1}')) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"a": 1},
    }


def test_objects_are_joined_from_texts_without_the_absent():
    assert obj({"b": b"1.0", "gone": b"", 'q"': b"[]"}) == b'{"b":1.0,"q\\"":[]}'
    assert obj({}) == b"{}"
