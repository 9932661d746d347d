"""The official clients against the real pair: each lists the tools, calls them, sees progress and errors."""

import asyncio
import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import yaml
from fastmcp import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from tests.conformance.endpoints import PNG
from tests.conformance.pack import MANIFEST, Running
from tests.support.node_setup import NODE_DIRECTORY, node_environment

LEGACY, MODERN = "2025-11-25", "2026-07-28"
TOOLS = [tool["name"] for tool in yaml.safe_load(MANIFEST.read_text())["tools"]]
PROGRESS = [
    (0, 100, "Completed step 0 of 100"),
    (50, 100, "Completed step 50 of 100"),
    (100, 100, "Completed step 100 of 100"),
]
FAILURE_TEXT = "This tool intentionally returns an error for testing"
INVALID_PARAMS = -32602
INSPECTOR_REFUSED, INSPECTOR_TOOL_ERROR = 3, 5
PROGRAM_SECONDS = 60

modes = pytest.mark.parametrize(("mode", "revision"), [("legacy", LEGACY), ("auto", MODERN), (MODERN, MODERN)])


class Ended(NamedTuple):
    code: int
    output: str
    errors: str


async def run_node(node: Path, *arguments: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a program on Node, in the directory of the packages, and waits for its end."""
    process = await asyncio.create_subprocess_exec(
        node, *arguments, cwd=NODE_DIRECTORY, env={**node_environment(), **(environment or {})},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PROGRAM_SECONDS):
            output, errors = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), errors.decode())


@modes
async def test_python_client_lists_and_calls(running: Running, mode: str, revision: str):
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    async with (
        httpx2.AsyncClient(headers={"Authorization": running.credential.basic}, timeout=30) as http,
        Client(streamable_http_client(running.url, http_client=http), mode=mode) as client,
    ):
        assert client.protocol_version == revision
        assert [tool.name for tool in (await client.list_tools()).tools] == TOOLS
        result = await client.call_tool("add", {"a": 2, "b": 3})
        assert (result.structured_content, bool(result.is_error)) == ({"sum": 5}, False)
        await client.call_tool("test_tool_with_progress", {}, progress_callback=on_progress)
        assert seen == PROGRESS

        failing = await client.call_tool("test_error_handling", {})
        assert failing.is_error
        assert FAILURE_TEXT in failing.content[0].text  # type: ignore[union-attr]
        assert (await client.call_tool("add", {"a": "two"})).is_error
        with pytest.raises(MCPError) as caught:
            await client.call_tool("no_such_tool", {})
        assert caught.value.error.code == INVALID_PARAMS


@modes
async def test_content_blocks_reach_the_client(running: Running, mode: str, revision: str):
    async with (
        httpx2.AsyncClient(headers={"Authorization": running.credential.basic}, timeout=30) as http,
        Client(streamable_http_client(running.url, http_client=http), mode=mode) as client,
    ):
        blocks = [
            block.model_dump(by_alias=True, exclude_none=True, mode="json")
            for tool in ("test_simple_text", "test_image_content", "test_audio_content", "test_embedded_resource")
            for block in (await client.call_tool(tool, {})).content
        ]
        mixed = (await client.call_tool("test_multiple_content_types", {})).content
    text, image, audio, resource = blocks
    assert text == {"type": "text", "text": "This is a simple text response for testing."}
    assert (image["type"], image["mimeType"], base64.b64decode(image["data"])) == ("image", "image/png", PNG)
    assert (audio["type"], audio["mimeType"], base64.b64decode(audio["data"])[:4]) == ("audio", "audio/wav", b"RIFF")
    assert resource["resource"]["text"] == "This is an embedded resource content."
    assert [block.type for block in mixed] == ["text", "image", "resource"]


@modes
async def test_fastmcp_client_lists_and_calls(running: Running, mode: str, revision: str):
    seen: list[tuple[float, float | None, str | None]] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        seen.append((progress, total, message))

    transport = StreamableHttpTransport(running.url, headers={"Authorization": running.credential.bearer})
    async with FastClient(transport, mode=mode) as client:
        assert [tool.name for tool in await client.list_tools()] == TOOLS
        assert (await client.call_tool("add", {"a": 2, "b": 3})).structured_content == {"sum": 5}
        await client.call_tool("test_tool_with_progress", {}, progress_handler=on_progress)
        assert seen == PROGRESS
        with pytest.raises(ToolError, match=FAILURE_TEXT):
            await client.call_tool("test_error_handling", {})


def check_typescript(seen: dict[str, Any], revision: str) -> None:
    assert seen["revision"] == revision
    assert seen["tools"] == TOOLS
    assert seen["call"]["result"]["structuredContent"] == {"sum": 5}
    assert [(update["progress"], update["total"], update["message"]) for update in seen["progress"]] == PROGRESS
    assert seen["withProgress"]["result"]["structuredContent"] == {"steps": 3}
    assert seen["failing"]["result"]["isError"] is True
    assert FAILURE_TEXT in seen["failing"]["result"]["content"][0]["text"]
    assert seen["badArguments"]["result"]["isError"] is True
    assert seen["unknown"]["error"]["code"] == INVALID_PARAMS


async def test_typescript_v1_client_lists_and_calls(running: Running, node: Path):
    ended = await run_node(node, "ts_v1.mjs", running.url, running.credential.bearer)
    assert (ended.code, ended.errors) == (0, "")
    check_typescript(json.loads(ended.output), LEGACY)


@modes
async def test_typescript_v2_client_lists_and_calls(running: Running, node: Path, mode: str, revision: str):
    ended = await run_node(node, "ts_v2.mjs", running.url, running.credential.bearer, mode)
    assert (ended.code, ended.errors) == (0, "")
    check_typescript(json.loads(ended.output), revision)


class Inspector:
    """The Inspector's command line, with a home of its own, where it keeps files."""

    def __init__(self, running: Running, node: Path, home: Path, era: str) -> None:
        self.running, self.node, self.home, self.era = running, node, home, era

    async def __call__(self, *arguments: str, authorization: str = "") -> Ended:
        header = f"Authorization: {authorization or self.running.credential.bearer}"
        return await run_node(
            self.node, "node_modules/.bin/mcp-inspector", "--cli", self.running.url, "--transport", "http",
            "--header", header, "--protocol-era", self.era, *arguments, "--format", "json", "-q",
            environment={"HOME": str(self.home)},
        )  # fmt: skip

    async def call(self, tool: str, arguments: dict[str, Any]) -> Ended:
        return await self("--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments))


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_inspector_lists_and_calls(running: Running, node: Path, tmp_path: Path, era: str):
    inspector = Inspector(running, node, tmp_path, era)
    listed = await inspector("--method", "tools/list")
    assert listed.code == 0, listed.errors
    assert [tool["name"] for tool in json.loads(listed.output)["result"]["tools"]] == TOOLS
    called = await inspector.call("add", {"a": 2, "b": 3})
    assert called.code == 0, called.errors
    assert json.loads(called.output)["result"]["structuredContent"] == {"sum": 5}
    assert (await inspector.call("test_tool_with_progress", {})).code == 0


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_inspector_tells_errors_apart(running: Running, node: Path, tmp_path: Path, era: str):
    inspector = Inspector(running, node, tmp_path, era)
    assert (await inspector.call("test_error_handling", {})).code == INSPECTOR_TOOL_ERROR
    assert (await inspector.call("add", {"a": "two"})).code == INSPECTOR_TOOL_ERROR
    refused = await inspector("--method", "tools/list", authorization="Bearer bm8tb25lOm5vdGhpbmc=")
    assert refused.code == INSPECTOR_REFUSED
