"""The official MCP conformance suite against the real pair: `make conformance`."""

from pathlib import Path

# The manifest of the tools that the suite asks for.
PACK = Path(__file__).with_name("tools.yaml")
