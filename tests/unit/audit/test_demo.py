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
from affinityd.errors import InvalidRequestError
from affinityd.machines import BUSY, load
from affinityd.topology.nearness import CAUSES, MIXED, UNKNOWN

PID_MAX_LIMIT = 2**22  #: proc_sys_kernel(5): no process of this machine has such a pid


def test_it_has_each_state_and_cause_and_no_pid_of_this_machine() -> None:
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


def test_the_last_hour_is_full_and_time_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = Demo(BUSY)
    first = processes.scan(load(BUSY))
    assert all("." not in letters for letters in first.history.values())
    later = first.boot + 10
    monkeypatch.setattr(demo, "since_boot", lambda: later)
    second = processes.scan(load(BUSY))
    gpu = load(BUSY).gpus[0].key
    spent = second.gpu_time[gpu].remote - first.gpu_time[gpu].remote
    assert spent == pytest.approx(49, abs=0.5)  # seconds: 4.9 CPUs for ten seconds


def test_a_replayed_machine_is_not_taken_for_the_node_s_daemon() -> None:
    of_file = Settings(socket=SYSTEM_SOCKET, listen=("10.0.0.1", 9465), machine=BUSY)
    of_user = Settings(socket=default_socket(), machine="mi250x")
    for chosen in (of_file, of_user):
        with pytest.raises(InvalidRequestError, match="give it another socket, like --socket"):
            of_replay(chosen, Namespace(socket=None, listen=None))
    with_socket = Namespace(socket="/run/demo/affinityd.sock", listen=None)
    assert of_replay(of_file, with_socket).listen == DEFAULT_LISTEN
