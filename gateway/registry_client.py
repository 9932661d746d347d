"""The links to the registry service, and whether they stand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import grpc
from structlog.typing import FilteringBoundLogger

from gateway.failures.table import Failure

_READY = grpc.ChannelConnectivity.READY
# A connection is on its way: soon there is one, or word that there is none.
_UNDECIDED = frozenset({grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING})


class Link:
    """A channel, and one watcher for all who want to know whether it is connected.

    gRPC keeps a kilobyte for ever of every server-streaming RPC that starts on a channel which was never connected, so
    none is to be started there.
    """

    def __init__(self, channel: grpc.aio.Channel, target: str, log: FilteringBoundLogger) -> None:
        self.channel = channel
        self._target = target
        self._log = log
        self._ready = False
        self._decided = asyncio.Event()

    async def connect(self, seconds: float) -> None:
        """Returns at once on a link that stands. Waits for one that is being made; raises SERVICE_UNAVAILABLE."""
        if self._ready:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._decided.wait()
        if self.channel.get_state(try_to_connect=True) is not _READY:
            raise Failure("SERVICE_UNAVAILABLE")

    async def watch(self) -> None:
        """Follows the state of the channel, and has it connect again whenever it is idle."""
        was_ready = True
        while True:
            state = self.channel.get_state(try_to_connect=True)
            self._ready = state is _READY
            if state in _UNDECIDED:
                self._decided.clear()
            else:
                self._decided.set()
                self._report(was_ready)
                was_ready = self._ready
            await self.channel.wait_for_state_change(state)

    def _report(self, was_ready: bool) -> None:
        if was_ready and not self._ready:
            self._log.warning("the registry is away", target=self._target)
        elif self._ready and not was_ready:
            self._log.info("the registry is back", target=self._target)


@asynccontextmanager
async def watched(link: Link) -> AsyncIterator[Link]:
    """Watches the link for as long as the context is open."""
    watching = asyncio.create_task(link.watch())
    try:
        yield link
    finally:
        watching.cancel()
        await asyncio.wait({watching})
