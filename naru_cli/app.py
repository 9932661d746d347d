"""Puts the `naru` command together: a client of the registry service, and through the gateway of the tools.

The commands stand in `tools` and `accounts`; here are those that are about neither alone.
"""

import asyncio
import os
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from naru_cli import accounts, answer_file, calls, doctor, results, tools
from naru_cli import output as out
from naru_cli.arguments import Types, arguments_of, checked_object, listed_types
from naru_cli.call import Course, Gateway, Reply
from naru_cli.command import AsJson, access, command, new_app
from naru_cli.failures import CliError, Exit
from naru_cli.trial import call_version, trial_request, trial_types

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
app.add_typer(calls.app, name="calls")
command(app, "usage")(accounts.usage)
command(app, "record")(calls.record)


def show_version(wanted: bool) -> None:
    if wanted:
        out.show(f"naru {metadata.version('naru')}")
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Takes what stands before a command; the help is that of `app`."""


Pairs = Annotated[
    list[str] | None,
    typer.Option(
        "--arg",
        "-a",
        metavar="NAME=VALUE",
        help="One argument, typed as the tool's schema says; NAME:=JSON is exact.",
    ),
]
Seconds = Annotated[
    float | None,
    typer.Option(min=0.001, metavar="SECONDS", help="How long to wait; by default as long as the tool may."),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Save the answer here: its image or other bytes, else its text."),
]
Trial = Annotated[
    str,
    typer.Option(
        "--version", metavar="VERSION", help="As the admin: try this version, active or not, past the gateway."
    ),
]


@command(app, "call")
def call(
    name: Annotated[str, typer.Argument(metavar="TOOL", help="The tool's name.")],
    arg: Pairs = None,
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="All arguments, as a JSON object.")] = None,
    lane: Annotated[str, typer.Option(help="real_test or production; by default the plan's.")] = "",
    timeout: Seconds = None,
    output: Output = None,
    version: Trial = "",
    as_json: AsJson = False,
) -> None:
    """Calls a tool through the gateway, with a live progress bar."""
    if arg and args is not None:
        raise CliError("--arg and --args are two ways of saying the same: use one", Exit.USAGE)
    if output is not None:
        answer_file.check(output)
    reach, course = access(), Course()
    gateway = Gateway(reach, language(), timeout)

    def types() -> Types:
        return trial_types(reach, name, version) if version else asyncio.run(listed_types(gateway, name))

    arguments = checked_object(args) if args is not None else arguments_of(arg or [], types)
    try:
        if version:
            request = trial_request(name, version, arguments, lane)
            with out.progress_bar(f"{name} {version}") as report:
                reply = call_version(reach, request, timeout, report, course)
        else:
            reply = asyncio.run(run_call(gateway, name, arguments, lane, course))
    except KeyboardInterrupt:
        raise course.failure("interrupted", Exit.INTERRUPTED) from None
    raise typer.Exit(results.show_result(reply, reach.meta_prefix, output, as_json=as_json))


async def run_call(gateway: Gateway, name: str, arguments: bytes, lane: str, course: Course) -> Reply:
    with out.progress_bar(name) as report:
        return await gateway.call_tool(name, arguments, lane, report, course)


def language() -> str:
    """Returns Korean where the terminal is, else English, as is everything that the command says itself."""
    locale = os.environ.get("LC_ALL") or os.environ.get("LC_MESSAGES") or os.environ.get("LANG") or ""
    return "ko" if locale.lower().startswith("ko") else "en"


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
