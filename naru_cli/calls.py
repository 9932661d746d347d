"""Serves `naru calls …` and `naru record`: what the ledger holds of calls."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Annotated, TypeVar

import typer
from google.protobuf.timestamp_pb2 import Timestamp

from naru.v1 import execution_pb2
from naru.v1.errors_pb2 import Reason
from naru_cli import output as out
from naru_cli.command import AsJson, command, execution, new_app, pages
from naru_cli.failures import CliError, Exit

app = new_app(help="Looks into the ledger of calls.")

Number = TypeVar("Number", bound=int)

AGO = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
COLUMNS = {
    "call_id": "call",
    "create_time": "admitted",
    "client_id": "account",
    "tool": "tool",
    "version": "version",
    "lane": "lane",
    "state": "outcome",
    "reason": "reason",
    "http_status": "HTTP",
    "duration_ms": "ms",
}
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@command(app, "list")
def calls_list(
    tool: Annotated[str, typer.Option(metavar="TOOL", help="Only calls of this tool.")] = "",
    account: Annotated[str, typer.Option(metavar="CLIENT_ID", help="Only calls of this account.")] = "",
    outcome: Annotated[
        str, typer.Option(help="Only calls that are running, succeeded, tool_error, failed, cancelled or unknown.")
    ] = "",
    reason: Annotated[str, typer.Option(help="Only calls that failed for this reason, such as TOOL_TIMED_OUT.")] = "",
    since: Annotated[
        str, typer.Option(metavar="TIME", help="Only calls since then: 30m, 2h, 7d, or 2026-12-01T09:00 (UTC).")
    ] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Only calls before then, written as for --since.")] = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many, the newest.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Lists calls, newest first: of which tool, how long they took, and what became of them."""
    request = execution_pb2.ListCallsRequest(
        client_id=account,
        tool=tool,
        state=number_of(dict(execution_pb2.Call.State.items()), "--outcome", outcome),
        reason=number_of(dict(Reason.items()), "--reason", reason),
        create_time_from=time_of("--since", since) if since else None,
        create_time_until=time_of("--until", until) if until else None,
    )
    # One more than is shown, so that it can be said that there are more.
    found = list(islice(listed(request, limit), limit + 1))
    if as_json:
        out.show_json([out.call_dict(call) for call in found[:limit]])
    else:
        out.table(list(COLUMNS.values()), map(row, found[:limit]), "no calls")
    if len(found) > limit:
        out.note(f"there are more calls than these {limit}: --limit shows more, --until and the filters others")


def listed(request: execution_pb2.ListCallsRequest, limit: int) -> Iterator[execution_pb2.Call]:
    return pages(execution, "ListCalls", request, "calls", page_size=min(limit + 1, 1000))


def row(call: execution_pb2.Call) -> list[str]:
    shown = out.call_dict(call)
    cells = {name: "" if shown[name] is None else str(shown[name]) for name in COLUMNS}
    if call.trial:
        cells["version"] += " (trial)"
    return list(cells.values())


def number_of(numbers: Mapping[str, Number], option: str, name: str) -> Number:
    """Returns the number of an enum's name, in any case; that of UNSPECIFIED for no name.

    Raises CliError (USAGE) for a name that the enum lacks.
    """
    unspecified, *known = sorted(numbers, key=lambda known: numbers[known])
    if name and name.upper() not in known:
        raise CliError(f"{option} {name}: want one of {', '.join(known)}, in capital letters or not", Exit.USAGE)
    return numbers[name.upper() or unspecified]


def time_of(option: str, text: str) -> Timestamp:
    """Reads `2h` as the time two hours ago, and anything else as an ISO 8601 time, in UTC unless it says otherwise."""
    try:
        ago = AGO.fullmatch(text)
        span = timedelta(**{UNITS[ago[2]]: int(ago[1])}) if ago else None
        moment = datetime.fromisoformat(text) if span is None else datetime.now(UTC) - span
    except (ValueError, OverflowError) as error:
        message = f"{option} {text}: want 30m, 2h, 7d or a time such as 2026-12-01T09:00"
        raise CliError(message, Exit.USAGE) from error
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def record(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="The X-Naru-Call-Id of a call.")],
    as_json: AsJson = False,
) -> None:
    """Shows what the ledger holds of a call: whether it ran, how long, and what became of it."""
    shown = out.call_dict(execution("GetCall", execution_pb2.GetCallRequest(call_id=call_id)))
    if as_json:
        out.show_json(shown)
        return
    out.table(["call", ""], [(name, str(value)) for name, value in shown.items() if value not in ("", None, False)], "")
