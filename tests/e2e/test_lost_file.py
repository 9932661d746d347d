"""The SQLite file goes away under the running pair: it is noticed, said, and nothing more is promised."""

import asyncio
from pathlib import Path

import pytest

from ops.stack import Stack
from tests.support.scene import Load, Scene, opened
from tests.support.speaker import LEGACY
from tests.support.waiting import eventually

NOTICE_SECONDS = 6.0


async def is_ready(scene: Scene) -> bool:
    return (await scene.client.get("/readyz"))[0] == 200


async def is_unready(scene: Scene) -> bool:
    return not await is_ready(scene)


@pytest.mark.parametrize("name", ["naru.db", "naru.db-wal"])
async def test_a_file_that_was_removed_is_noticed_and_nothing_more_is_promised(stack: Stack, name: str):
    registry = stack.registry()
    path = Path(stack.database_url.removeprefix("sqlite:///")).with_name(name)
    async with opened(stack, registry, stack.gateway(registry)) as scene:
        load = Load(scene.client, scene.tool("/echo"), (LEGACY,), workers=2)
        load.start()
        await load.succeeded(10)
        away = path.with_name("away")
        path.rename(away)
        await eventually(lambda: is_unready(scene), NOTICE_SECONDS)
        told = len(load.replies)
        await eventually(lambda: len(load.replies) > told + 5)
        assert "" not in load.reasons(since=told)
        assert [record for record in registry.records() if "was removed or replaced" in str(record.get("error"))]
        assert not path.exists()

        away.rename(path)
        await eventually(lambda: is_ready(scene))
        await load.succeeded(10)
        await load.stop()
        assert set(load.reasons()) <= {"", "SERVICE_UNAVAILABLE", "CALL_OUTCOME_UNKNOWN"}


async def test_a_removed_file_does_not_come_back_empty(stack: Stack):
    registry = stack.registry()
    path = Path(stack.database_url.removeprefix("sqlite:///"))
    async with opened(stack, registry, stack.gateway(registry)) as scene:
        await asyncio.to_thread(path.unlink)
        await eventually(lambda: is_unready(scene), NOTICE_SECONDS)
        assert (await scene.client.call("any")).reason == "SERVICE_UNAVAILABLE"
        assert not await asyncio.to_thread(path.exists)
