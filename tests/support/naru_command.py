"""Holds what tests of the `naru` command share: what it said, manifests, terminals, content blocks."""

import base64
import json
import os
from typing import Any, NamedTuple


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def manifest(name: str, version: str, url: str = "http://127.0.0.1:1/x", **members: Any) -> str:
    tool = {"name": name, "version": version, "description": "a test", "inputSchema": {"type": "object"}}
    return json.dumps({"tools": [tool | {"endpoint": {"production": {"url": url}}} | members]})


def read_all(terminal: int) -> str:
    """Returns what is drawn at a terminal until its other end is closed."""
    drawn = b""
    try:
        while chunk := os.read(terminal, 4096):
            drawn += chunk
    except OSError:  # Linux's way of saying that it is over
        pass
    os.close(terminal)
    return drawn.decode()


def switched(naru, name: str, *versions: str) -> None:
    """Makes a tool with these versions active."""
    for version in versions:
        assert naru("tool", "apply", "-f", "-", stdin=manifest(name, version)).code == 0
        assert naru("tool", "activate", name, version, "--keep-others").code == 0


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def image_block(data: bytes) -> dict[str, str]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(data).decode()}
