"""Definitions for tests of tools."""

import json
from typing import Any

DRAFT_07 = "http://json-schema.org/draft-07/schema#"


def definition(**changes: Any) -> dict[str, Any]:
    """A definition without faults; a change to None leaves the member out."""
    whole = {
        "description": "Counts characters.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        "endpoint": {"production": {"url": "http://127.0.0.1:9000/stats"}},
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def raw(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def nested(levels: int) -> dict[str, Any]:
    """A schema whose objects lie `levels` deep."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range((levels - 1) // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def arguments(**properties: Any) -> dict[str, Any]:
    """An input schema with these properties."""
    return {"type": "object", "properties": properties}
