"""The bench, briefly: it must measure both sides and every process of them. What it measures is not judged here."""

import json
import subprocess
import sys

from ops.stack import ROOT

SECONDS = 100


def test_bench_measures_product_and_floor():
    ended = subprocess.run(
        [sys.executable, "-m", "bench", "--seconds", "0.3", "--rounds", "1", "--concurrency", "2", "--json"],
        cwd=ROOT, timeout=SECONDS, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    results = json.loads(ended.stdout)
    rows = [(row["carriage"], row["side"]) for row in results["rows"]]
    assert rows == [("json", "floor"), ("json", "product"), ("sse", "floor"), ("sse", "product")]
    for row in results["rows"]:
        assert row["sample"]["calls_per_second"] > 0
        assert row["sample"]["p99"] >= row["sample"]["p50"] > row["direct"]["p50"] > 0
        assert set(row["sample"]["cpu"]) == {"gateway", "executor", "endpoint", "generator"}
    assert all(0 < item["calls_per_second"] < 5 for item in results["ratios"])
    assert all(mib > 10 for side in results["rss"].values() for mib in side.values())
