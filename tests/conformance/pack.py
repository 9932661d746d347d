"""A running pair with the tools that the conformance suite asks for, for the suite and for the tests of clients."""

from pathlib import Path
from typing import NamedTuple

from ops.admin import Credential, read_manifest
from ops.stack import Process, Stack

MANIFEST = Path(__file__).with_name("tools.yaml")


class Running(NamedTuple):
    """A pair that serves the pack, and an account that may call it."""

    stack: Stack
    registry: Process
    gateway: Process
    credential: Credential

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/mcp"


def start_pack(stack: Stack, **gateway_settings: str) -> Running:
    """Starts a pair and the pack's endpoints in this stack, registers the tools and an account."""
    registry = stack.registry()
    endpoints = stack.start("tests.conformance.endpoints")
    admin = stack.admin(registry)
    admin.apply(read_manifest(MANIFEST, TOOLS_URL=endpoints.url))
    return Running(stack, registry, stack.gateway(registry, **gateway_settings), admin.create_account())
