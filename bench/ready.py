"""Writes that a process of the bench serves, in the form of the product's own log line."""

from typing import Protocol

import msgspec


class Listener(Protocol):
    """A listening socket, the standard library's or the loop's."""

    def getsockname(self) -> tuple[str, int]: ...


def announce(name: str, listener: Listener) -> None:
    """Prints what `announce_port` prints, with the port that the socket is bound to."""
    announce_port(name, listener.getsockname()[1])


def announce_port(name: str, port: int) -> None:
    """Prints `{"event": "<name> ready", "address": "127.0.0.1:<port>"}` as one line."""
    line = msgspec.json.encode({"event": f"{name} ready", "address": f"127.0.0.1:{port}"})
    print(line.decode(), flush=True)
