"""Shows things: tables and sentences for people, JSON for scripts."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import typer
from google.protobuf.timestamp_pb2 import Timestamp
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from naru.v1 import accounts_pb2, errors_pb2, execution_pb2, registry_pb2
from naru_cli.call import Progress, Report
from naru_cli.failures import CliError

# Unicode's Bidi_Control: with these a text reads as another one than it is.
BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
# Characters that a terminal would obey, in text that came from elsewhere.
OBEYED = [code for code in (*range(32), *range(127, 160), *BIDIRECTIONAL) if chr(code) not in "\n\t"]
CONTROLS = dict.fromkeys(OBEYED, "\N{REPLACEMENT CHARACTER}")
# The same as JSON escapes, so that the JSON at a terminal stays what it was.
ESCAPES = {code: f"\\u{code:04x}" for code in OBEYED}


def show_json(value: object) -> None:
    """Writes JSON in two-space steps; a `msgspec.Raw` inside keeps its digits and the order of its keys."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    typer.echo(text.translate(ESCAPES) if sys.stdout.isatty() else text)


def show(text: str) -> None:
    typer.echo(text.translate(CONTROLS) if sys.stdout.isatty() else text)


def note(text: str) -> None:
    """Says something beside the output proper, on standard error."""
    typer.echo(text.translate(CONTROLS) if sys.stderr.isatty() else text, err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> None:
    """Draws a table. The first column is what a row is called: it stays whole, and the others are folded for it."""
    rows = list(rows)
    if not rows:
        note(empty)
        return
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    drawn.add_column(columns[0], no_wrap=True, min_width=max(cell_len(row[0]) for row in rows))
    for name in columns[1:]:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell.translate(CONTROLS)) for cell in row))
    # Into a pipe or a file a table keeps its lines whole.
    Console(width=None if sys.stdout.isatty() else 1000).print(drawn)


def show_error(error: CliError, *, as_json: bool) -> None:
    if not as_json:
        note(f"naru: {error}")
        return
    reason = error.reason or error.code.name
    shown = {**error.facts, "reason": reason, "message": str(error), "exit_code": int(error.code)}
    text = msgspec.json.encode({"error": shown}).decode()
    typer.echo(text.translate(ESCAPES) if sys.stderr.isatty() else text, err=True)


def time_of(stamp: Timestamp) -> str:
    """Returns RFC 3339 in UTC, with milliseconds."""
    return stamp.ToDatetime().isoformat(timespec="milliseconds") + "Z"


def tool_dict(tool: registry_pb2.Tool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "active_versions": list(tool.active_versions),
        "version_count": tool.version_count,
        "create_time": time_of(tool.create_time),
        "update_time": time_of(tool.update_time),
    }


def version_dict(version: registry_pb2.ToolVersion) -> dict[str, Any]:
    return {
        "tool": version.tool,
        "version": version.version,
        "active": version.active,
        "create_time": time_of(version.create_time),
        "definition": msgspec.Raw(version.definition),
    }


def account_dict(account: accounts_pb2.Account) -> dict[str, Any]:
    return {
        "client_id": account.client_id,
        "display_name": account.display_name,
        "plan": account.plan,
        "state": accounts_pb2.Account.State.Name(account.state).lower(),
        "secrets": [
            {"id": secret.id, "hint": secret.hint, "create_time": time_of(secret.create_time)}
            for secret in account.secrets
        ],
        "create_time": time_of(account.create_time),
        "update_time": time_of(account.update_time),
    }


def call_dict(call: execution_pb2.Call) -> dict[str, Any]:
    """Describes a call. Texts are empty, and times and numbers None, where there is nothing to say."""
    return {
        "call_id": call.call_id,
        "client_id": call.client_id,
        "tool": call.tool,
        "version": call.version,
        "trial": call.trial,
        "lane": call.lane,
        "state": execution_pb2.Call.State.Name(call.state),
        "reason": reason_of(call),
        "detail": call.detail,
        "http_status": call.http_status or None,
        "session_id": call.session_id,
        "jsonrpc_id": call.jsonrpc_id,
        "create_time": time_of(call.create_time),
        "settle_time": time_of(call.settle_time) if call.HasField("settle_time") else None,
        "duration_ms": call.duration.ToMicroseconds() / 1000 if call.HasField("duration") else None,
    }


def reason_of(call: execution_pb2.Call) -> str:
    """Returns the reason's name, its number if only a newer registry knows it, or nothing."""
    if not call.reason:
        return ""
    return errors_pb2.Reason.Name(call.reason) if call.reason in errors_pb2.Reason.values() else str(call.reason)


@contextmanager
def progress_bar(name: str) -> Iterator[Report | None]:
    """Draws a live bar on standard error; nothing where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ProgressBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None)

        def report(progress: Progress) -> None:
            description = (progress.message or name).translate(CONTROLS)
            bar.update(task, completed=progress.progress, total=progress.total, description=description)

        yield report
