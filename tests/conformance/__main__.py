"""`python -m tests.conformance`: runs the official suite for the two revisions that it knows, judged by its exit code.

A scenario that a server of tools alone cannot pass is named, with the reason, in `expected-failures-<revision>.yaml`.
The suite fails on any other failure or warning, and on an entry there that passes. Since a dead server passes some of
its scenarios, the runner first makes sure that the gateway answers.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import aiohttp

from ops.stack import Stack
from tests.conformance.pack import start_pack
from tests.conformance.proxy import AuthorizingProxy
from tests.support import node_setup

REVISIONS = ("2025-11-25", "2026-07-28")
SUITE_SECONDS = 300
# Where the scenario-by-scenario part of what the suite prints ends.
_SUMMARY = "=== SUMMARY ==="
_INITIALIZE = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "check", "version": "0"}},
}  # fmt: skip


async def check_answer(url: str) -> None:
    """Raises AssertionError, or aiohttp's ClientError, unless an MCP server answers at the URL."""
    headers = {"Accept": "application/json, text/event-stream"}
    async with aiohttp.ClientSession() as session, session.post(url, json=_INITIALIZE, headers=headers) as answer:
        text = await answer.text()
        assert answer.status == 200, f"{answer.status}: {text}"
        assert '"serverInfo"' in text, text


async def run_suite(url: str, revision: str, directory: Path) -> tuple[int, str]:
    """Runs the set of scenarios of one revision; returns the exit code and what it printed."""
    baseline = Path(__file__).with_name(f"expected-failures-{revision}.yaml")
    process = await asyncio.create_subprocess_exec(
        node_setup.NODE, "node_modules/.bin/conformance", "server", "--url", url, "--requirements", revision,
        "--expected-failures", baseline, "--output-dir", directory / revision,
        cwd=node_setup.NODE_DIRECTORY, env=node_setup.node_environment(),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SUITE_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode is not None
    return process.returncode, output.decode()


async def run(stack: Stack, revisions: list[str], results: Path) -> int:
    """Starts the pair behind the proxy and runs the suites. Returns 1 if one of them failed."""
    async with AuthorizingProxy() as proxy:
        running = start_pack(stack, GATEWAY_ALLOWED_ORIGINS=proxy.origin)
        proxy.target, proxy.authorization = running.gateway.address, running.credential.bearer
        url = f"{proxy.origin}/mcp"
        await check_answer(url)
        failed = []
        for revision in revisions:
            code, output = await run_suite(url, revision, results)
            print(f"--- {revision}\n{output if code else output[output.find(_SUMMARY) :]}")
            if code:
                failed.append(revision)
    print(f"conformance: {'failed for ' + ', '.join(failed) if failed else 'passed for ' + ', '.join(revisions)}")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--revision", nargs="+", choices=REVISIONS, default=list(REVISIONS))
    parser.add_argument("--output", type=Path, help="where the suite writes each check (default: nowhere that is kept)")
    options = parser.parse_args()
    node_setup.install()
    with tempfile.TemporaryDirectory(prefix="naru-conformance-") as directory, Stack(Path(directory)) as stack:
        return asyncio.run(run(stack, options.revision, (options.output or Path(directory)).resolve()))


if __name__ == "__main__":
    sys.exit(main())
