"""A table of times at the end of the run: reported, never asserted, and beside each how many times a fixed piece of work it is."""

import time

import pytest

ROWS = []


def best_of(function, times):
    """Seconds of the fastest of some runs: the one nothing else disturbed."""
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


@pytest.fixture(scope="session")
def yardstick():
    """A hundred thousand additions in Python, on this machine, now."""
    return best_of(lambda: sum(i for i in range(100_000)), 5)


@pytest.fixture
def report(yardstick):
    """Call it with a name, a function and the time it should take: the time goes into the table."""

    def report(name, function, target="", times=5):
        seconds = best_of(function, times)
        ROWS.append((name, seconds, seconds / yardstick, target))
        return seconds

    return report


def pytest_terminal_summary(terminalreporter):
    if ROWS:
        terminalreporter.section("benchmarks")
        terminalreporter.write_line(f"{'':46}{'time':>11}  {'yardsticks':>10}  target")
        for name, seconds, ratio, target in ROWS:
            terminalreporter.write_line(f"{name:46}{1000 * seconds:>8.2f} ms  {ratio:>10.2f}  {target}")
