"""The `naru` command: a client of its own service (gRPC) and, for calls, of the gateway (HTTP)."""
