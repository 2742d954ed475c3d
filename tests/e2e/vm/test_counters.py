"""A real kernel on a machine with many NUMA nodes: CPU time and waits, as the kernel counts them.

A figure may differ from the kernel's by 5 %, and by TICKS, the clock ticks of some threads.
"""

import json

import pytest

from tests.e2e.vm.guest_counters import SPENDERS, USED
from tests.e2e.vm.inside import Document

PART = 0.05
TICKS = 0.1  #: seconds

SHORT = ("short threads", "short threads far away", "more short threads than CPUs")
LASTING = ("lasting threads", "threads near and far", "more threads than CPUs", "a limit")
FAR_PART = {"threads near and far": 0.75, "short threads far away": 1.0}
LEAST_SCANS = 5  #: on an idle host; with fewer scans the first one may miss threads that only wait


def same(seconds: float) -> object:
    return pytest.approx(seconds, rel=PART, abs=TICKS)


@pytest.mark.parametrize("name", [*SPENDERS, "scans that fail"])
def test_cpu_time_equals_the_kernel_s_count(seen: Document, name: str) -> None:
    """The time is that of the process, its ended threads and its children.

    It is compared with the cgroup's cpu.stat and the process's stat, which rounds ticks.
    """
    counted, truth = seen[name]["counted"], seen[name]["truth"]
    assert truth["cpu"] > 1
    assert counted["cpu"] == same(truth["usage"])
    if name != "short children":
        assert counted["cpu"] == same(truth["cpu"])


@pytest.mark.parametrize("name", SPENDERS)
def test_far_cpu_time_is_that_of_threads_on_far_cpus(seen: Document, name: str) -> None:
    counted = seen[name]["counted"]
    assert counted["remote"] == same(FAR_PART.get(name, 0.0) * counted["cpu"])


@pytest.mark.parametrize("name", LASTING)
def test_waits_equal_those_of_schedstat_or_are_not_measurable(seen: Document, name: str) -> None:
    counted, truth = seen[name]["counted"], seen[name]["truth"]
    assert counted["waited"] <= (1 + PART) * truth["waited"] + TICKS
    assert counted["throttled"] == same(truth["throttled"])
    assert counted["stolen"] == same(truth["stolen"])
    if counted["measured"] >= LEAST_SCANS and not counted["unmeasured"]:
        assert counted["waited"] == same(truth["waited"])


def test_threads_that_outnumber_cpus_wait_and_a_limit_throttles(seen: Document) -> None:
    """If no thread waited, the tests above would have nothing to count."""
    assert seen["more threads than CPUs"]["truth"]["waited"] > 10
    assert seen["a limit"]["truth"]["throttled"] > 1


@pytest.mark.parametrize("name", SHORT)
def test_waits_of_short_lived_threads_are_not_measurable(seen: Document, name: str) -> None:
    assert seen[name]["counted"]["unmeasured"] > 0
    assert seen[name]["counted"]["measured"] <= 2  # measurable while few or all threads have ended


def test_why_says_that_waits_of_short_lived_threads_are_not_measurable(seen: Document) -> None:
    why = json.loads(seen["why"]["stdout"])
    assert (why["waited"], why["unmeasured"]) == (None, "short-lived threads")
    assert why["remedy"] is None


def test_a_gpu_keeps_its_counter_when_another_gpu_is_lost(seen: Document) -> None:
    before, after = seen["a GPU is lost"]["before"], seen["a GPU is lost"]["after"]
    assert before[USED] > 1
    assert after == before[1:]
