"""Waiting in tests, always with a bound."""

import asyncio
from collections.abc import Awaitable, Callable


async def eventually(condition: Callable[[], object], seconds: float = 15.0) -> None:
    """Waits until the condition holds: a function, plain or async. Raises TimeoutError."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if await value if isinstance(value, Awaitable) else value:
                return
            await asyncio.sleep(0.02)
