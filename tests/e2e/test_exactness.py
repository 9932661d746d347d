"""Tokens survive from the client to the endpoint and back (judged item 5): digits, order of keys, unknown members."""

import json

import pytest

from tests.support.pair import Pair
from tests.support.scripted_endpoint import Script
from tests.support.speaker import EVERYBODY, LEGACY, MODERN, XDATA, Json, Speaker

pytestmark = pytest.mark.asyncio(loop_scope="session")

everybody = pytest.mark.parametrize("speaker", EVERYBODY, ids=lambda speaker: speaker.name)

NUMBERS = [
    "9007199254740993", "1.0", "-0", "-0.0", "0.1", "1e2", "1E+100", "1.50", "123456789012345678901234567890",
    "0.1000000000000000055511151231257827", "-9223372036854775809", "18446744073709551616", "1e-7",
]  # fmt: skip


@everybody
async def test_numbers_there_and_back(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo", inputSchema={"type": "object", "properties": {"n": {"type": "number"}}})
    for raw in NUMBERS:
        arguments = f'{{"n":{raw},"l":[{raw}],"o":{{"n":{raw}}}}}'
        reply = await pair.call(tool, Json(arguments), speaker=speaker)
        assert pair.requests(tool)[-1].body.decode() == arguments
        assert f'"structuredContent":{arguments}' in reply.body.decode()
        assert reply.result["content"] == [{"type": "text", "text": arguments}]


@everybody
async def test_a_number_beyond_all_bounds_is_refused_rather_than_changed(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    for number in ("1E+400", "-1e400", "1" * 5000, "[[-1e309]]", f'{{"deep":{"9" * 4301}}}'):
        last = (await pair.call(tool, Json(f'{{"n":{number}}}'), speaker=speaker)).messages[-1]
        data = last["error"]["data"] if "error" in last else last["result"]["_meta"]["xdata.kr/error"]
        assert data["reason"] == "ARGUMENTS_INVALID"
        (violation,) = data["violations"]
        assert violation["keyword"] == "numberRange"
        assert "4300자리" in violation["message"]
    assert pair.executions(tool) == 0


@everybody
async def test_order_white_space_and_unknown_members(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    arguments = '{ "z" : 1 ,\t"a":[ ],"m":{"y":null,  "x":""},"":"\\/\\u0041\\n","é":"é" }'
    reply = await pair.call(tool, Json(arguments), speaker=speaker)
    assert pair.requests(tool)[0].body.decode() == arguments
    assert f'"structuredContent":{arguments}' in reply.body.decode()


@everybody
async def test_line_ends_between_tokens_only_become_spaces(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    arguments = '{\r\n"a":\n1.0,\r"b":"\\r\\n"}'
    reply = await pair.call(tool, Json(arguments), speaker=speaker)
    assert pair.requests(tool)[0].body.decode() == arguments
    result = reply.result
    assert result["structuredContent"] == {"a": 1.0, "b": "\r\n"}
    assert result["content"][0]["text"] == arguments
    on_one_line = speaker.name in ("xdata", "ndjson")
    expected = arguments.replace("\r", " ").replace("\n", " ") if on_one_line else arguments
    assert f'"structuredContent":{expected}' in reply.body.decode()


@everybody
async def test_absent_arguments_are_an_empty_object(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    for arguments in (None, Json("{}")):
        reply = await pair.call(tool, arguments, speaker=speaker)
        assert reply.result["structuredContent"] == {}
    assert [request.body for request in pair.requests(tool)] == [b"{}", b"{}"]


@pytest.mark.parametrize("speaker", [XDATA, LEGACY, MODERN], ids=lambda speaker: speaker.name)
@pytest.mark.parametrize("media", ["application/json", "application/x-ndjson", "text/event-stream"])
async def test_results_of_every_form_of_answer(pair: Pair, speaker: Speaker, media: str):
    result = '{"n":9007199254740993,"f":1.0,"z":{"b":1,"a":2}}'
    body = {
        "application/json": result,
        "application/x-ndjson": f'{{"progress":1.0}}\n{{"result":{result}}}\n',
        "text/event-stream": f'data: {{"progress":1.0}}\n\ndata: {{"result":{result}}}\n\n',
    }[media]
    tool = pair.tool(Script(content_type=media, chunks=[body.encode()]))
    reply = await pair.call(tool, {}, speaker=speaker)
    assert f'"structuredContent":{result}' in reply.body.decode()


@everybody
async def test_paths_and_queries_keep_their_digits(pair: Pair, speaker: Speaker):
    schema = {"type": "object", "properties": {"id": {"type": "number"}}}
    tool, entry = pair.definition("/target", inputSchema=schema)
    entry["endpoint"]["production"]["url"] = pair.endpoint.url("/target/{id}")
    pair.admin.apply({"tools": [entry]})
    arguments = Json('{"id":9007199254740993,"f":1.0,"big":123456789012345678901234567890}')
    sent = (await pair.call(tool, arguments, speaker=speaker)).result["structuredContent"]
    assert sent["target"] == "/target/9007199254740993"
    assert sent["body"] == '{"f":1.0,"big":123456789012345678901234567890}'


@everybody
async def test_a_long_text_arrives_whole(pair: Pair, speaker: Speaker):
    tool = pair.tool("/echo")
    text = '가나다 😀 \u2028 \\ " / \t' * 20_000
    reply = await pair.call(tool, {"text": text}, speaker=speaker)
    assert json.loads(pair.requests(tool)[0].body) == {"text": text}
    assert reply.result["structuredContent"] == {"text": text}


async def test_an_answer_up_to_the_limit_arrives_however_much_its_text_grows(pair: Pair):
    """8 MiB of quotes are 8 MiB of structured content, and as text, where each is escaped again, 16 MiB."""
    answer = json.dumps({"quotes": '"' * 4_100_000}).encode()
    assert 8_000_000 < len(answer) < 8 << 20
    tool = pair.tool(Script(chunks=[answer]))
    result = (await pair.call(tool, {}, speaker=LEGACY.accepting("application/json"))).result
    assert result["structuredContent"] == json.loads(answer)
    assert result["content"][0]["text"].encode() == answer
