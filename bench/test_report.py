"""The ratios and the verdicts that the bench prints."""

import pytest

from bench.measure import Sample, middle
from bench.report import Results, Row, Soak, lines, ratio


def sample(calls: float = 1000.0, gateway: float = 300.0, executor: float = 300.0, p50: float = 10_000.0) -> Sample:
    cpu = {"gateway": gateway, "executor": executor, "endpoint": 30.0, "generator": 40.0}
    return Sample(calls_per_second=calls, p50=p50, p99=2 * p50, cpu=cpu)


DIRECT = Sample(calls_per_second=100_000.0, p50=1_000.0, p99=2_000.0, cpu={"endpoint": 7.0, "generator": 7.0})


def row(side: str, measured: Sample, carriage: str = "json") -> Row:
    return Row(side, carriage, 32, measured, DIRECT)


def test_middle_takes_the_median_of_each_number():
    taken = middle([sample(100, gateway=9), sample(300, gateway=1), sample(200, gateway=5)])
    assert (taken.calls_per_second, taken.cpu["gateway"]) == (200, 5)


def test_ratio_sets_the_product_beside_the_floor():
    item = ratio(row("floor", sample()), row("product", sample(700, 400, 500, p50=19_000)))
    assert item.calls_per_second == pytest.approx(0.7)
    assert item.cpu == pytest.approx(1.5)
    assert item.added_p50 == pytest.approx(2.0)  # 18 ms beside 9 ms


@pytest.mark.parametrize(
    ("product", "within"),
    [
        (sample(660, 450, 470), True),
        (sample(640, 450, 470), False),  # too few calls
        (sample(660, 450, 480), False),  # too much CPU
    ],
)
def test_budget_is_kept_or_not(product: Sample, within: bool):
    results = Results(setup={}, ratios=[ratio(row("floor", sample()), row("product", product))])
    assert results.within_budget is within
    assert list(lines(results))[-1].endswith("within" if within else "ABOVE")


def test_other_loads_are_not_judged():
    slow = [row("floor", sample(), "sse"), row("product", sample(1), "sse")]
    assert Results(setup={}, ratios=[ratio(*slow)]).within_budget


@pytest.mark.parametrize(("few", "many", "within"), [(100, 109, True), (100, 112, False), (140, 151, False)])
def test_memory_may_grow_a_tenth_and_to_a_limit(few: float, many: float, within: bool):
    assert Soak("gateway", few, many).within_budget is within


def test_every_row_is_printed_under_its_load():
    rows = [row("floor", sample()), row("product", sample(700, 400, 500))]
    printed = list(lines(Results(setup={"cores": 2}, rows=rows, ratios=[ratio(*rows)])))
    assert printed[0] == "cores 2"
    assert printed[2].startswith("JSON, 32")
    assert [line.split()[:2] for line in printed[3:6]] == [["floor", "1000"], ["product", "700"], ["ratio", "0.70"]]
