"""A name server for one name, whose addresses a test may change: how replicas are found where DNS tells them."""

import socket
import struct
import threading
from types import TracebackType

NAME = "registry.test"
_A = 1
_TYPE_AND_CLASS = 4
_HEADER = 12
_ANSWER = 0x8400  # a response, with authority
_POINTER_TO_NAME = 0xC00C


class Nameserver:
    """Answers every question of type A with `addresses`, to be kept for no time, and others with nothing."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Nameserver":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()

    def target(self, port: str) -> str:
        """The gRPC target of whatever has the name, on this port."""
        host, own_port = self._socket.getsockname()
        return f"dns://{host}:{own_port}/{NAME}:{port}"

    def _serve(self) -> None:
        while True:
            query, client = self._socket.recvfrom(4096)
            if not query:
                return
            self._socket.sendto(self._answer(query), client)

    def _answer(self, query: bytes) -> bytes:
        end = query.index(b"\0", _HEADER) + 1 + _TYPE_AND_CLASS
        question = query[_HEADER:end]
        kind = struct.unpack(">H", question[-4:-2])[0]
        addresses = self.addresses if kind == _A else []
        header = struct.pack(">2sHHHHH", query[:2], _ANSWER, 1, len(addresses), 0, 0)
        records = [
            struct.pack(">HHHIH4s", _POINTER_TO_NAME, _A, 1, 0, 4, socket.inet_aton(address)) for address in addresses
        ]
        return header + question + b"".join(records)
