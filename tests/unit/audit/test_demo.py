"""The machine with recorded processes shows one of each finding, and counters that grow."""

from argparse import Namespace

import pytest

from affinityd.audit import demo
from affinityd.audit.demo import Demo
from affinityd.audit.document import document
from affinityd.audit.findings import LOST, RESERVED, STATES, states
from affinityd.cli.commands.serve import of_replay
from affinityd.config import SYSTEM_SOCKET, default_socket
from affinityd.config.settings import DEFAULT_LISTEN, Settings
from affinityd.machines import BUSY, load
from affinityd.topology.nearness import CAUSES, MIXED, UNKNOWN

PID_MAX_LIMIT = 2**22  #: proc_sys_kernel(5): no process of this machine has such a pid


def test_the_demo_has_each_state_and_cause_and_no_pid_of_this_machine() -> None:
    scan = Demo(BUSY).scan(load(BUSY))
    assert {*states(scan).values()} == {*STATES} - {LOST, MIXED, UNKNOWN, RESERVED}
    assert {process.cause for process in scan.processes} == {*CAUSES, None}
    assert all(process.facts.pid > PID_MAX_LIMIT for process in scan.processes)
    assert any(memory.cause and not scan.used[pid].remote for pid, memory in scan.memory.items())
    audit = document(load(BUSY), scan, names_all=True)
    assert audit.demo == BUSY
    waiting = [gpu.waiting["throttled"] for gpu in audit.gpus if gpu.waiting]
    assert waiting == [0, 0, 1, 0, 0, 0, 0, 0]
    far_memory = [gpu.far_memory["late"] for gpu in audit.gpus if gpu.far_memory]
    assert far_memory == [1, 1, 0, 1, 1, 0, 1, 0]


def test_the_demo_has_a_whole_last_hour_and_growing_counters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    processes = Demo(BUSY)
    first = processes.scan(load(BUSY))
    assert all("." not in letters for letters in first.history.values())
    later = first.boot + 10
    monkeypatch.setattr(demo, "since_boot", lambda: later)
    second = processes.scan(load(BUSY))
    gpu = load(BUSY).gpus[0].key
    spent = second.gpu_time[gpu].remote - first.gpu_time[gpu].remote
    assert spent == pytest.approx(49, abs=0.5)  # seconds: 4.9 CPUs for ten seconds


def test_no_client_of_a_job_uses_a_built_in_machine() -> None:
    unsaid = Namespace(socket=None, listen=None)
    of_file = Settings(socket=SYSTEM_SOCKET, listen=("10.0.0.1", 9465), machine=BUSY)
    chosen = of_replay(of_file, unsaid)
    apart = "/run/affinityd/replayed/affinityd.sock"
    assert (chosen.socket, chosen.listen) == (apart, DEFAULT_LISTEN)
    of_user = of_replay(Settings(socket=default_socket(), machine="mi250x"), unsaid)
    assert of_user.socket not in {SYSTEM_SOCKET, default_socket()}
    told = Namespace(socket=SYSTEM_SOCKET, listen=None)
    assert of_replay(of_file, told).socket == SYSTEM_SOCKET
