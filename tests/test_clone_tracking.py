"""Which threads may be starting others, told by real ones."""

from __future__ import annotations

import os
import threading
import time

import pytest

from affinityd.linux.clone_tracking import Starters
from tests.children import program, sleeping

pytestmark = pytest.mark.processes

#: Never asleep, and hardly ever outside of the kernel.
IN_THE_KERNEL = """
held = bytearray(64 * 2**20)
zeros = open('/dev/zero', 'rb', buffering=0)
print('ready', flush=True)
while True:
    zeros.readinto(held)
"""

#: Never asleep, and hardly ever in the kernel.
COMPUTING = """
print('ready', flush=True)
while True:
    pass
"""


def starters(pid: int) -> Starters:
    found = Starters()
    found.add(pid, pid)
    return found


def test_a_thread_that_sleeps_starts_nothing() -> None:
    with sleeping() as child:
        time.sleep(0.01)
        assert not starters(child.pid).are_left()


def test_a_thread_that_has_been_in_the_kernel_ever_since_may() -> None:
    with program(IN_THE_KERNEL) as child:
        found = starters(child.pid)
        for _ in range(50):
            assert found.are_left()
            time.sleep(0.001)


def test_a_thread_that_computes_has_left_the_kernel_before_long() -> None:
    with program(COMPUTING) as child:
        found = starters(child.pid)
        assert found.are_left()
        start = time.monotonic()
        while found.are_left():
            assert time.monotonic() - start < 5
            time.sleep(0.001)


def test_a_thread_that_has_ended_starts_nothing() -> None:
    with program(COMPUTING) as child:
        found = starters(child.pid)
        assert found.are_left()
        child.kill()
        child.wait()
        assert not found.are_left()


def test_the_thread_that_asks_starts_nothing_while_it_asks() -> None:
    found = Starters()
    found.add(os.getpid(), threading.get_native_id())
    assert not found.are_left()
