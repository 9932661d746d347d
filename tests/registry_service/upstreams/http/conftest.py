"""An endpoint, and what calls it."""

import asyncio

import pytest

from registry_service.tools.checks import Checks
from registry_service.upstreams.http.client import EndpointClient
from registry_service.upstreams.upstream import Attempt, Context
from tests.support.endpoint_tools import CALL_ID, LIMIT, LOOPBACK, make_tool
from tests.support.scripted_endpoint import ScriptedEndpoint


@pytest.fixture
async def endpoint():
    async with ScriptedEndpoint() as scripted:
        yield scripted


@pytest.fixture
async def client(tmp_path):
    checks = Checks()
    opened = EndpointClient(LOOPBACK, tmp_path, LIMIT, checks)
    await opened.open()
    yield opened
    await opened.close()
    await checks.close()


@pytest.fixture
def ask(client, endpoint):
    """Calls an endpoint: a URL, or a path of the scripted one."""

    async def ask(url, arguments=b"{}", *, on_progress=None, attempt=None, **settings):
        url = endpoint.url(url) if url.startswith("/") else url
        request = client.prepare(make_tool(url, **settings), "production", arguments)
        context = Context(CALL_ID, 5.5, "r-1", "00-" + "a" * 32 + "-" + "b" * 16 + "-01", "v=1")
        async with asyncio.timeout(10):
            return await client.call(request, context, attempt or Attempt(), on_progress)

    return ask
