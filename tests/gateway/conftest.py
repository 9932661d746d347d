from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.support.gateway_alone import GatewayProcess, gateway_process
from tests.support.scripted_registry import Script, registry_server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scripted_pair() -> AsyncIterator[tuple[GatewayProcess, Script]]:
    """A real gateway process in front of a scripted registry service, both for one module."""
    script = Script()
    async with registry_server(script) as (port, _), gateway_process(port) as gateway:
        yield gateway, script


@pytest.fixture
def gateway(scripted_pair: tuple[GatewayProcess, Script]) -> GatewayProcess:
    return scripted_pair[0]


@pytest.fixture
def script(scripted_pair: tuple[GatewayProcess, Script]) -> Iterator[Script]:
    scripted_pair[1].reset()
    yield scripted_pair[1]
    scripted_pair[1].reset()
