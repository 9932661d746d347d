"""gateway/http/pace.py: strictly increasing, a burst of 20, then 10 a second, and the last is never lost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.frame import Progress
from gateway.http.pace import Pace


class Simulation:
    """Drives a Pace as the stream does, on a clock that the test owns."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pace = Pace(self.now)
        self.sent: list[tuple[float, float]] = []
        self.dropped = 0

    def send(self, progress: Progress | None) -> None:
        if progress is not None:
            self.sent.append((self.now, progress.value))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while self.pace.due() <= until:
            self.now = max(self.now, self.pace.due())
            taken = self.pace.take(self.now)
            assert taken is not None
            self.send(taken)
        self.now = until

    def report(self, value: float) -> None:
        progress = Progress(value, bytes)
        if self.pace.rises(progress):
            self.send(self.pace.offer(progress, self.now))
        else:
            self.dropped += 1

    def end(self) -> None:
        self.send(self.pace.flush())

    @property
    def values(self) -> list[float]:
        return [value for _, value in self.sent]


def test_a_burst_then_ten_a_second_and_the_latest_wins():
    simulation = Simulation()
    for value in range(100):
        simulation.report(value)
    assert simulation.values == list(range(20))
    simulation.wait(0.1)
    assert simulation.values[20:] == [99]
    for value in range(100, 200):
        simulation.report(value)
        simulation.wait(0.01)
    assert 9 <= len(simulation.values[21:]) <= 11
    simulation.end()
    assert simulation.values[-1] == 199


def test_silence_fills_the_burst_again_and_never_beyond():
    simulation = Simulation()
    for value in range(50):
        simulation.report(value)
    simulation.wait(1000)
    for value in range(50, 100):
        simulation.report(value)
    assert simulation.values[-20:] == list(range(50, 70))


def test_nothing_waits_without_a_reason():
    pace = Pace(0.0)
    assert pace.due() == math.inf
    assert pace.take(5.0) is None
    assert pace.flush() is None


def test_what_waits_is_not_given_before_its_time_nor_after_something_later():
    pace = Pace(0.0)
    for value in range(22):
        pace.offer(Progress(value, bytes), 0.0)
    assert pace.due() == pytest.approx(0.1)
    assert pace.take(0.05) is None
    later = Progress(22, bytes)
    assert pace.offer(later, 0.2) == later
    assert pace.due() == math.inf
    assert pace.flush() is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.0, 0.5, -1])
def test_what_does_not_rise_is_dropped(value):
    simulation = Simulation()
    simulation.report(1.0)
    simulation.report(value)
    assert simulation.values == [1.0]
    assert simulation.dropped == 1


def test_any_value_may_be_the_first():
    for value in (-5.0, 0.0, 1e300):
        simulation = Simulation()
        simulation.report(value)
        assert simulation.values == [value]


@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.floats(-100, 100) | st.integers(-100, 100)),
        max_size=120,
    )
)
def test_whatever_arrives(arrivals):
    simulation = Simulation()
    for pause, value in arrivals:
        simulation.wait(pause)
        simulation.report(value)
    simulation.end()
    assert all(earlier < later for earlier, later in zip(simulation.values, simulation.values[1:], strict=False))
    assert set(simulation.values) <= {value for _, value in arrivals}
    if arrivals:
        assert simulation.values[-1] == max(value for _, value in arrivals)
    flushed = simulation.sent[:-1]  # the last may have been flushed early
    for i, (began, _) in enumerate(flushed):
        for j, (at, _) in enumerate(flushed[i:], start=1):
            assert j <= 20 + (at - began) * 10 + 1e-6
