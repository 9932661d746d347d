"""One run of the generator against one address, with the CPU time that each process spent on it."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
import psutil

from bench.load import Plan, Report
from ops.stack import ROOT, Process

MIB = 1 << 20
SYNCS = 30


class LoadError(Exception):
    """Some responses were not what they must be; the text holds the first of them."""


class Sample(msgspec.Struct, frozen=True):
    """Holds what one run showed. `cpu` is µs a call by process, the generator among them; latencies are in µs."""

    calls_per_second: float
    p50: float
    p99: float
    cpu: dict[str, float]


def measure(
    request: str, marker: str, address: str, load: Mapping[str, float], processes: Mapping[str, Process]
) -> Sample:
    """Runs the generator with `load` (members of `Plan`: concurrency, seconds or calls). Raises LoadError."""
    before = {name: _cpu_seconds(process) for name, process in processes.items()}
    report = _generate(request, marker, address, load)
    spent = {name: _cpu_seconds(process) - before[name] for name, process in processes.items()}
    spent["generator"] = report.cpu
    return Sample(
        calls_per_second=report.calls / report.wall,
        p50=report.p50,
        p99=report.p99,
        cpu={name: seconds / report.calls * 1e6 for name, seconds in spent.items()},
    )


def middle(samples: Sequence[Sample]) -> Sample:
    """The median of each number."""
    return Sample(
        calls_per_second=median(sample.calls_per_second for sample in samples),
        p50=median(sample.p50 for sample in samples),
        p99=median(sample.p99 for sample in samples),
        cpu={name: median(sample.cpu[name] for sample in samples) for name in samples[0].cpu},
    )


def rss_mib(process: Process) -> float:
    """The resident memory of a process, in MiB."""
    return float(psutil.Process(process.pid).memory_info().rss) / MIB


def sync_ms(directory: Path) -> float:
    """Returns how long the disk takes to make a page durable, in ms (median): the ledger waits for it twice a call."""
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return median(times) * 1000


def _generate(request: str, marker: str, address: str, load: Mapping[str, float]) -> Report:
    host, _, port = address.rpartition(":")
    plan = msgspec.convert({"host": host, "port": int(port), "request": request, "marker": marker, **load}, Plan)
    ended = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=msgspec.json.encode(plan),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        check=True,
    )
    report = msgspec.json.decode(ended.stdout, type=Report)
    if report.failures or not report.calls:
        raise LoadError(f"{report.failures} of {report.calls} responses were wrong, first:\n{report.first_failure}")
    return report


def _cpu_seconds(process: Process) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)
