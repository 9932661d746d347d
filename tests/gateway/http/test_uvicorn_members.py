"""Checks for what gateway/http/uvicorn_protocol.py uses of uvicorn and uvicorn doesn't promise to anybody."""

import inspect
import re
from importlib.metadata import version

import pytest
from uvicorn import Server
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

import gateway.http.uvicorn_protocol

WHERE = "read gateway/http/uvicorn_protocol.py again"

CALLED = {
    HttpToolsProtocol: (
        "connection_made", "connection_lost", "data_received", "eof_received", "on_message_begin", "on_header",
        "on_url", "on_headers_complete", "on_body", "on_message_complete", "on_response_complete", "pause_writing",
        "resume_writing", "send_400_response", "timeout_keep_alive_handler", "shutdown",
    ),
    FlowControl: ("pause_reading", "resume_reading", "drain"),
    RequestResponseCycle: ("send", "receive", "run_asgi"),
    Server: ("startup", "shutdown", "main_loop", "capture_signals"),
}  # fmt: skip
ASSIGNED = {
    HttpToolsProtocol: (
        "app", "cycle", "flow", "headers", "loop", "parser", "pipeline", "scope", "timeout_keep_alive",
        "timeout_keep_alive_task", "transport", "url",
    ),
    RequestResponseCycle: (
        "body", "chunked_encoding", "disconnected", "expected_content_length", "keep_alive", "message_event",
        "more_body", "on_response", "response_complete", "response_started",
    ),
    FlowControl: ("write_paused",),
    Server: ("force_exit", "server_state", "should_exit"),
}  # fmt: skip


@pytest.mark.parametrize("owner", CALLED, ids=lambda owner: owner.__name__)
def test_uvicorn_still_has_the_methods_that_we_override_or_call(owner: type):
    gone = [name for name in CALLED[owner] if not callable(getattr(owner, name, None))]
    assert not gone, (
        f"uvicorn {version('uvicorn')} has no {owner.__name__}.{gone}: see gateway/http/uvicorn_protocol.py"
    )


@pytest.mark.parametrize("owner", ASSIGNED, ids=lambda owner: owner.__name__)
def test_uvicorn_still_sets_the_attributes_that_we_read(owner: type):
    source = inspect.getsource(owner)
    gone = [name for name in ASSIGNED[owner] if not re.search(rf"self\.{name}\b.*=", source)]
    assert not gone, (
        f"uvicorn {version('uvicorn')} sets no {owner.__name__}.{gone}: see gateway/http/uvicorn_protocol.py"
    )


def test_the_protocol_names_the_versions_that_it_was_written_against():
    text = gateway.http.uvicorn_protocol.__doc__ or ""
    for package in ("uvicorn", "httptools"):
        written = re.search(rf"{package} ([0-9.]+[0-9])", text)
        assert written, package
        assert written[1] == version(package), f"read gateway/http/uvicorn_protocol.py again for {package}"
