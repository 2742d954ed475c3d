"""`affinityd why` on real processes of a busy machine; tests/e2e/waits checks the figures."""

import json
import os
from contextlib import ExitStack

import pytest

from affinityd.cli import main
from affinityd.linux.scheduling import thread_time
from tests.support.children import ZOMBIE, children_of, program, sleeping

BUSY = "print('ready', flush=True)\nwhile True: pass"
Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.skipif(
    thread_time(os.getpid(), os.getpid()) is None, reason="this kernel does not count waits"
)


def test_a_process_that_shares_its_cpu_with_its_siblings_waits_for_them(capsys: Capture) -> None:
    before = ["taskset", "-c", f"{min(os.sched_getaffinity(0))}"]
    with ExitStack() as stack:
        crowd = [stack.enter_context(program(BUSY, before=before)).pid for _ in range(3)]
        assert main(["why", "--json", "--for", "2s", f"{crowd[0]}"]) == 0
    answer = json.loads(capsys.readouterr().out)
    facts = ("pid", "seconds", "waited", "unmeasured", "throttled", "stolen", "others", "cause")
    assert tuple(answer) == (*facts, "remedy", "pressure")
    assert answer["pid"] == crowd[0]
    assert answer["seconds"] >= 2
    assert answer["waited"] > 0.1 * answer["seconds"]
    assert {it["pid"] for it in answer["others"] if it["kind"] == "own_threads"} & {*crowd[1:]}
    assert answer["cause"] in {"own_threads", "system", "neighbor"}, "others may run here, too"
    assert answer["remedy"]


SHORT_LIVED = """
import threading, time
def work():
    end = time.thread_time() + 0.01
    while time.thread_time() < end:
        pass
print('ready', flush=True)
while True:
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


#: Threads that compute for good, without Python's lock.
LASTING = """
import hashlib, threading, time
def work():
    while True:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000)
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
while time.process_time() < 0.3:
    time.sleep(0.01)
print('ready', flush=True)
input()
"""


@pytest.mark.parametrize(
    ("env", "bound_by"),
    [
        ({"AFFINITYD_CPULIST": "0"}, "affinityd (AFFINITYD_CPULIST)"),
        ({}, "an unknown program"),
    ],
)
def test_the_program_that_bound_all_threads_to_one_cpu_is_named(
    capsys: Capture, env: dict[str, str], bound_by: str
) -> None:
    with program(LASTING, env=env, before=["taskset", "-c", "0"]) as child:
        assert main(["why", "--for=2", f"{child.pid}"]) == 0
    out = capsys.readouterr().out
    assert f"its threads are all bound to CPU 0 by {bound_by}, though it may use others" in out


def test_the_waits_of_short_lived_threads_are_not_measurable(capsys: Capture) -> None:
    with program(SHORT_LIVED) as child:
        assert main(["why", "--json", "--for=2", f"{child.pid}"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["waited"], answer["unmeasured"]) == (None, "short-lived threads")
    assert (answer["cause"], answer["remedy"]) == (None, None)


def test_a_process_that_cannot_be_measured_is_an_error_of_one_line(capsys: Capture) -> None:
    with program(ZOMBIE) as parent:
        (zombie,) = children_of(parent.pid)
        for pid, part in ((zombie, "has ended"), (2**22 - 1, "there is no process"), (2, "kernel")):
            assert main(["why", "--for=0.1", f"{pid}"]) == 2
            assert part in capsys.readouterr().err
    with sleeping() as child:
        for time in ("0", "-1s", "1h", "soon", "nan"):
            with pytest.raises(SystemExit):
                main(["why", f"--for={time}", f"{child.pid}"])
            assert repr(time) in capsys.readouterr().err


def test_a_process_that_ends_during_the_measurement_is_reported_as_ended(capsys: Capture) -> None:
    code = "import time\nprint('ready', flush=True)\ntime.sleep(0.3)"
    with program(code) as child:
        assert main(["why", "--for=1", f"{child.pid}"]) == 2
    assert "has ended meanwhile" in capsys.readouterr().err
