"""The official MCP conformance suite against the real pair: `make conformance`."""
