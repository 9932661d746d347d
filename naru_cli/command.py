"""Holds what the commands of `naru` have in common."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from naru.v1 import accounts_pb2_grpc, execution_pb2_grpc, registry_pb2_grpc
from naru_cli import output as out
from naru_cli.access import Access
from naru_cli.channel import RPC_TIMEOUT, RPC_TIMEOUTS, admin_metadata, open_channel
from naru_cli.failures import CliError

EPILOG = (
    "Exit codes: 0 done · 1 failure · 2 wrong usage · 3 no such tool, version, account, secret or call · 4 token or "
    "credential absent or refused · 5 registry or gateway out of reach · 6 the tool reported an error, or could not be "
    "asked · 7 refused as invalid, nothing was changed · 130 interrupted.\n\n"
    'With --json the result is JSON on standard output, and an error is {"error": {"reason", "message", "exit_code"}} '
    "with further facts on standard error."
)


class Command(TyperCommand):
    """Shows a CliError in the form that was asked for, and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            out.show_error(error, as_json=bool(ctx.params.get("as_json")))
            raise typer.Exit(error.code) from error


new_app = partial(
    typer.Typer, epilog=EPILOG, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False
)

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., None])


def command(app: typer.Typer, name: str) -> Callable[[CommandFunction], CommandFunction]:
    return app.command(name, cls=Command, epilog=EPILOG)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def access() -> Access:
    """Reads the settings, and warns of variables that nothing reads."""
    read = Access.from_env(os.environ, Path.cwd())
    for variable, nearest in read.unknown:
        out.note(f"naru: nothing reads {variable}{f': is {nearest} meant?' if nearest else ''}")
    return read


@contextmanager
def connected(service: Callable[..., Any], reach: Access) -> Iterator[Callable[[str, Any], Any]]:
    """Makes admin RPCs over one connection; the first that fails leaves as a CliError."""
    target = reach.execution if service is execution_pb2_grpc.ExecutionStub else reach.registry
    metadata = admin_metadata(reach, target)
    with open_channel(reach, target) as channel:
        stub = service(channel)
        yield lambda method, request: getattr(stub, method)(
            request, timeout=RPC_TIMEOUTS.get(method, RPC_TIMEOUT), metadata=metadata
        )


def rpc(service: Callable[..., Any], method: str, request: Any, reach: Access | None = None) -> Any:
    """Makes one admin RPC over a connection of its own; raises CliError."""
    with connected(service, reach or access()) as ask:
        return ask(method, request)


registry = partial(rpc, registry_pb2_grpc.RegistryStub)
accounts = partial(rpc, accounts_pb2_grpc.AccountsStub)
execution = partial(rpc, execution_pb2_grpc.ExecutionStub)


def pages(
    call: Callable[..., Any], method: str, request: Any, items: str, reach: Access | None = None, page_size: int = 1000
) -> Iterator[Any]:
    """Yields the items of every page of a List method."""
    request.page_size = page_size
    while True:
        page = call(method, request, reach)
        yield from getattr(page, items)
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token
