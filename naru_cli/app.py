"""The `naru` command: a client of the registry service, and through the gateway of the tools.

The commands stand in `tools` and `accounts`; here are those that are about neither alone.
"""

import asyncio
import os
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from naru.v1 import errors_pb2, execution_pb2
from naru_cli import accounts, answer_file, doctor, results, tools
from naru_cli import output as out
from naru_cli.access import CliError, Exit
from naru_cli.call import Course, Gateway, Reply, arguments_of
from naru_cli.command import AsJson, access, command, execution, new_app

HELP = (
    "Runs Naru's tools and looks after its registry.\n\n"
    "Where to and as whom: NARU_REGISTRY and NARU_ADMIN_TOKEN (or NARU_ADMIN_TOKEN_FILE) for the registry, "
    "NARU_EXECUTION for the records of calls where other processes run them; NARU_URL and NARU_CREDENTIALS "
    "(id:secret, or the path of a file with it) for calls. What is not set is taken from the .naru/ that `make run` "
    "leaves, which is looked for in the current directory alone; its secrets are only used with the addresses of that "
    "run, never with one that NARU_REGISTRY, NARU_EXECUTION or NARU_URL names. NARU_REGISTRY_CA_FILE turns on TLS; "
    "NARU_REGISTRY_CERT_FILE and NARU_REGISTRY_KEY_FILE show a client certificate."
)

app = new_app(help=HELP)
app.add_typer(tools.app, name="tool")
app.add_typer(accounts.app, name="account")
command(app, "usage")(accounts.usage)


def show_version(wanted: bool) -> None:
    if wanted:
        out.show(f"naru {version('naru')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """What stands before a command; the help is that of `app`."""


@command(app, "call")
def call(
    name: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    arg: Annotated[
        list[str] | None,
        typer.Option(
            "--arg",
            "-a",
            metavar="NAME=VALUE",
            help="One argument, typed as the tool's schema says; NAME:=JSON is exact.",
        ),
    ] = None,
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="All arguments, as a JSON object.")] = None,
    lane: Annotated[str, typer.Option(help="real_test or production; by default the plan's.")] = "",
    timeout: Annotated[
        float | None,
        typer.Option(min=0.001, metavar="SECONDS", help="How long to wait; by default as long as the tool may."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Save the answer here: its image or other bytes, else its text."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calls a tool through the gateway, with a live progress bar."""
    if arg and args is not None:
        raise CliError("--arg and --args are two ways of saying the same: use one", Exit.USAGE)
    if output is not None:
        answer_file.check(output)
    gateway, course = Gateway(access(), language(), timeout), Course()
    arguments = checked_object(args) if args is not None else asyncio.run(arguments_of(gateway, name, arg or []))
    try:
        reply = asyncio.run(run_call(gateway, name, arguments, lane, course))
    except KeyboardInterrupt:
        raise course.failure("interrupted", Exit.INTERRUPTED) from None
    raise typer.Exit(results.show_result(reply, gateway.access.meta_prefix, output, as_json=as_json))


async def run_call(gateway: Gateway, name: str, arguments: bytes, lane: str, course: Course) -> Reply:
    with out.progress_bar(name) as report:
        return await gateway.call_tool(name, arguments, lane, report, course)


def checked_object(text: str) -> bytes:
    """JSON text of an object, as it was given."""
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise CliError(f"--args is not a JSON object: {error}", Exit.USAGE) from error
    return text.encode()


def language() -> str:
    """Korean where the terminal is, else English, as is everything that the command says itself."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "ko" if locale.lower().startswith("ko") else "en"


@command(app, "record")
def record(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="The X-Naru-Call-Id of a call.")],
    as_json: AsJson = False,
) -> None:
    """Shows what the ledger holds of a call: whether it ran, and what became of it."""
    found = execution("GetCall", execution_pb2.GetCallRequest(call_id=call_id))
    reason = errors_pb2.Reason.Name(found.reason) if found.reason else ""
    shown = out.call_dict(found, reason)
    if as_json:
        out.show_json(shown)
        return
    out.table(["call", ""], [(name, str(value)) for name, value in shown.items() if value], "")


@command(app, "doctor")
def run_doctor(as_json: AsJson = False) -> None:
    """Looks at every link from here to the tools, and names the setting that is wrong."""
    findings = asyncio.run(doctor.examine(access()))
    if as_json:
        out.show_json([finding.as_dict() for finding in findings])
    else:
        doctor.show(findings)
    if doctor.is_ill(findings):
        raise typer.Exit(Exit.FAILURE)


def main() -> None:
    app(prog_name="naru")


if __name__ == "__main__":
    main()
