"""`python -m bench`: measures the product beside the floor. Exit code 1 if an answer was wrong or, with --check, if the
budget is exceeded."""

import argparse
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import cast

import msgspec

from bench.measure import LoadError, Sample, measure, middle, rss_mib, sync_ms
from bench.report import Results, Row, Soak, lines, ratio
from bench.sides import (
    ENDPOINT_MARKER,
    SIDE_MARKER,
    Carriage,
    Side,
    direct_call,
    start_floor,
    start_product,
    tool_call,
)
from ops.stack import Process, Stack

WARM_UP_SECONDS = 1.0
DIRECT_SECONDS = 0.5
SOAK_CALLS = (5_000, 50_000)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each side, by turns (default 3)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32], help="connections (default 1 8 32)")
    parser.add_argument("--carriage", nargs="+", choices=["json", "sse"], default=["json", "sse"])
    parser.add_argument("--floor-only", action="store_true", help="measure the floor alone")
    parser.add_argument("--soak", action="store_true", help="memory after 5 000 and after 50 000 calls, too")
    parser.add_argument("--state", type=Path, help="where the product's database lies (default: a temporary directory)")
    parser.add_argument("--json", action="store_true", help="print data instead of a table")
    parser.add_argument("--check", action="store_true", help="exit code 1 if the budget is exceeded")
    return parser.parse_args(arguments)


def measure_side(side: Side, endpoint: Process, carriage: Carriage, concurrency: int, seconds: float) -> Sample:
    """One measurement of one side."""
    return measure(
        tool_call(side, carriage), SIDE_MARKER, side.gateway.address,
        {"concurrency": concurrency, "seconds": seconds},
        {"gateway": side.gateway, "executor": side.executor, "endpoint": endpoint},
    )  # fmt: skip


def measure_direct(endpoint: Process, carriage: Carriage, concurrency: int) -> Sample:
    """One measurement of the endpoint alone."""
    request = direct_call(endpoint, carriage)
    load = {"concurrency": concurrency, "seconds": DIRECT_SECONDS}
    return measure(request, ENDPOINT_MARKER, endpoint.address, load, {"endpoint": endpoint})


def measure_load(
    sides: list[Side], endpoint: Process, carriage: Carriage, concurrency: int, options: argparse.Namespace
) -> list[Row]:
    """Every side under one load, by turns, so that a slow minute of the machine hits them all."""
    samples: dict[str, list[Sample]] = {side.name: [] for side in sides}
    direct = []
    for _ in range(options.rounds):
        direct.append(measure_direct(endpoint, carriage, concurrency))
        for side in sides:
            samples[side.name].append(measure_side(side, endpoint, carriage, concurrency, options.seconds))
    return [Row(name, carriage, concurrency, middle(of_side), middle(direct)) for name, of_side in samples.items()]


def soak(side: Side, endpoint: Process) -> list[Soak]:
    """Memory after few and after many calls in all."""
    processes = {"gateway": side.gateway, "executor": side.executor}
    few, many = SOAK_CALLS
    sizes = []
    for calls in (few, many - few):
        load = {"concurrency": 32, "calls": calls}
        measure(tool_call(side, "json"), SIDE_MARKER, side.gateway.address, load, {"endpoint": endpoint})
        sizes.append({name: rss_mib(process) for name, process in processes.items()})
    return [Soak(name, sizes[0][name], sizes[1][name]) for name in processes]


def run(stack: Stack, options: argparse.Namespace) -> Results:
    """Starts everything, measures, and returns what was seen. Raises LoadError for a wrong answer."""
    results = Results(setup=_setup(stack.directory, options))
    endpoint = stack.start("bench.endpoint")
    starters = [start_floor] if options.floor_only else [start_floor, start_product]
    sides = [start(stack, endpoint) for start in starters]
    if options.soak:  # first, while the processes are fresh
        results.soak = soak(sides[-1], endpoint)
    for carriage in cast(list[Carriage], options.carriage):
        for side in sides:
            measure_side(side, endpoint, carriage, 8, WARM_UP_SECONDS)
        for concurrency in options.concurrency:
            rows = measure_load(sides, endpoint, carriage, concurrency, options)
            results.rows += rows
            if len(rows) == 2:
                results.ratios.append(ratio(*rows))
    for side in sides:
        results.rss[side.name] = {"gateway": rss_mib(side.gateway), "executor": rss_mib(side.executor)}
    return results


def _setup(directory: Path, options: argparse.Namespace) -> dict[str, str | int | float]:
    return {
        "cores": os.cpu_count() or 0,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
        "disk sync ms": round(sync_ms(directory), 2),
        "rounds": options.rounds,
        "seconds": options.seconds,
    }


def main() -> int:
    options = parse_arguments(sys.argv[1:])
    with (
        tempfile.TemporaryDirectory(prefix="naru-bench-", dir=options.state) as directory,
        Stack(Path(directory)) as stack,
    ):
        try:
            results = run(stack, options)
        except LoadError as error:
            print(error, file=sys.stderr)
            return 1
    print(msgspec.json.encode(results).decode() if options.json else "\n".join(lines(results)))
    return 1 if options.check and not results.within_budget else 0


if __name__ == "__main__":
    sys.exit(main())
