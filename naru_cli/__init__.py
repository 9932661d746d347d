"""Talks to both services for people: a client of the registry (gRPC) and, for calls, of the gateway (HTTP)."""
