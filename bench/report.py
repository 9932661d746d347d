"""Formats the results of the bench: rows of numbers, ratios and how they stand to the budget."""

from collections.abc import Iterator
from itertools import groupby

import msgspec

from bench.measure import Sample

# At 32 concurrent in JSON: the product's calls a second, and its calls a CPU second, as a share of the floor's.
BUDGET = 0.65
RSS_LIMIT_MIB = 150
RSS_GROWTH = 1.10
_HEADINGS = (
    "calls/s", "p50 ms", "p99 ms", "added p50", "added p99",
    "gateway µs", "executor µs", "both µs", "endpoint", "generator",
)  # fmt: skip


class Row(msgspec.Struct, frozen=True):
    """One side under one load, beside the endpoint called directly (`direct`)."""

    side: str
    carriage: str
    concurrency: int
    sample: Sample
    direct: Sample

    @property
    def both(self) -> float:
        """CPU of gateway and executor together, µs a call."""
        return self.sample.cpu["gateway"] + self.sample.cpu["executor"]

    @property
    def added_p50(self) -> float:
        return self.sample.p50 - self.direct.p50

    @property
    def added_p99(self) -> float:
        return self.sample.p99 - self.direct.p99


class Ratio(msgspec.Struct, frozen=True):
    """The product beside the floor under one load: `calls_per_second` product / floor, `cpu` product / floor."""

    carriage: str
    concurrency: int
    calls_per_second: float
    cpu: float
    added_p50: float
    added_p99: float

    @property
    def within_budget(self) -> bool:
        return self.calls_per_second >= BUDGET and self.cpu <= 1 / BUDGET


class Soak(msgspec.Struct, frozen=True):
    """Resident memory of one process, MiB, after few and after many calls."""

    process: str
    after_few: float
    after_many: float

    @property
    def within_budget(self) -> bool:
        return self.after_many <= min(self.after_few * RSS_GROWTH, RSS_LIMIT_MIB)


class Results(msgspec.Struct):
    """Everything that one run showed. `rss` is MiB by side and process, at the end."""

    setup: dict[str, str | int | float]
    rows: list[Row] = []
    ratios: list[Ratio] = []
    rss: dict[str, dict[str, float]] = {}
    soak: list[Soak] = []

    @property
    def judged(self) -> list[Ratio]:
        """The ratios that the budget is about."""
        return [item for item in self.ratios if (item.carriage, item.concurrency) == ("json", 32)]

    @property
    def within_budget(self) -> bool:
        return all(item.within_budget for item in self.judged) and all(item.within_budget for item in self.soak)


def ratio(floor: Row, product: Row) -> Ratio:
    """Sets the product beside the floor."""
    return Ratio(
        carriage=product.carriage,
        concurrency=product.concurrency,
        calls_per_second=product.sample.calls_per_second / floor.sample.calls_per_second,
        cpu=product.both / floor.both,
        added_p50=product.added_p50 / floor.added_p50,
        added_p99=product.added_p99 / floor.added_p99,
    )


def lines(results: Results) -> Iterator[str]:
    """The report as text."""
    yield ", ".join(f"{name} {value}" for name, value in results.setup.items())
    ratios = {(item.carriage, item.concurrency): item for item in results.ratios}
    for (carriage, concurrency), rows in groupby(results.rows, key=lambda row: (row.carriage, row.concurrency)):
        yield ""
        yield _line((f"{carriage.upper()}, {concurrency}", *_HEADINGS))
        for row in rows:
            yield _line((row.side, *_numbers(row)))
        if (carriage, concurrency) in ratios:
            yield _line(("ratio", *_ratios(ratios[carriage, concurrency])))
    yield ""
    for side, processes in results.rss.items():
        yield f"RSS, {side}: " + ", ".join(f"{name} {mib:.0f} MiB" for name, mib in processes.items())
    yield from _verdicts(results)


def _numbers(row: Row) -> tuple[str, ...]:
    sample = row.sample
    times = (sample.p50, sample.p99, row.added_p50, row.added_p99)
    cpu = (sample.cpu["gateway"], sample.cpu["executor"], row.both, sample.cpu["endpoint"], sample.cpu["generator"])
    return (
        f"{sample.calls_per_second:.0f}",
        *(f"{time / 1000:.2f}" for time in times),
        *(f"{part:.0f}" for part in cpu),
    )


def _ratios(item: Ratio) -> tuple[str, ...]:
    added = (f"{item.added_p50:.2f}", f"{item.added_p99:.2f}")
    return (f"{item.calls_per_second:.2f}", "", "", *added, "", "", f"{item.cpu:.2f}")


def _line(cells: tuple[str, ...]) -> str:
    return (cells[0].ljust(14) + "".join(cell.rjust(12) for cell in cells[1:])).rstrip()


def _verdicts(results: Results) -> Iterator[str]:
    for item in results.judged:
        yield (
            f"Budget, JSON at 32 concurrent: CPU {item.cpu:.2f} of the floor's (at most {1 / BUDGET:.2f}), calls/s "
            f"{item.calls_per_second:.2f} of the floor's (at least {BUDGET}): {_word(within=item.within_budget)}"
        )
    for process in results.soak:
        yield (
            f"Soak, {process.process}: {process.after_few:.1f} MiB, then {process.after_many:.1f} MiB "
            f"(at most {RSS_GROWTH:.2f} times that, and {RSS_LIMIT_MIB} MiB): {_word(within=process.within_budget)}"
        )


def _word(*, within: bool) -> str:
    return "within" if within else "ABOVE"
