"""A daemon to which anything happens, in any order: whatever it answers is what is so."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from affinityd.config import NODE_FILE, PARAMETER_VARIABLES
from affinityd.cpuset import format_list, parse_list
from affinityd.discovery import discover, open_tree
from affinityd.errors import AffinityError
from affinityd.request.environment import ALLOWED, CPULIST, READ, SLICE
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS, parse_query
from affinityd.request.resolve import answer
from affinityd.topology.document import read_node
from affinityd.topology.model import Gpu, Node, Topology
from tests.e2e.fuzz.inputs import FEW
from tests.support.daemons import PATIENCE, Reply, eventually, is_ready, spawn
from tests.support.machines.by_hand import made
from tests.support.machines.strategies import UNIQUE, options
from tests.support.machines.sysfs_tree import write_tree

TREE = made({0: "0-3,8-11", 1: "4-7,12-15"}, gpus=[0, 1, 1], threads=2)
EVERY = sorted(TREE.online)
ONLINE = "sys/devices/system/cpu/online"
RESERVED = "0,8"

cpulists = st.sets(st.sampled_from(EVERY), min_size=1).map(format_list)
parameters = st.builds(
    lambda how, which: {**how, **which},
    options(),
    st.fixed_dictionaries(
        {},
        optional={
            "gpus": st.lists(st.sampled_from("0123"), min_size=1, max_size=4).map(",".join),
            "cpuset": cpulists | st.sampled_from(["0-65535", "x", ""]),
            "rank": st.sampled_from(["0", "0-1", "7", "-"]),
            "strict": st.sampled_from(["true", "perhaps"]),
            "visible": st.sampled_from(["", "1,0", "0,0", "GPU-x"]),
            "format": st.sampled_from([*FORMATS, "xml"]),
        },
    ),
)
#: The numbers of ranks and tasks, and the GPUs of a process and its job.
variables = st.dictionaries(
    st.sampled_from(sorted(READ - {ALLOWED, CPULIST, SLICE, *PARAMETER_VARIABLES.values()})),
    st.sampled_from(["0", "1", "2", "0,1", "256", "4294967294", "all", ""]),
    max_size=5,
)


class Model:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = write_tree(TREE, folder / "root")
        self.start()

    def start(self) -> None:
        self.read, self.seen, self.generation = self.now(), self.online, 1
        arguments = ("--root", os.fspath(self.root), "--reserved-cpus", RESERVED)
        self.daemon = spawn(self.folder, *arguments, "--log-format", "json")
        eventually(lambda: is_ready(self.daemon), "the daemon is ready")

    @property
    def online(self) -> str:
        return (self.root / ONLINE).read_text()

    def now(self) -> Topology:
        return discover(open_tree(os.fspath(self.root)), None)

    def read_anew(self) -> None:
        topology = self.now()
        self.generation += topology != self.read
        self.read, self.seen = topology, self.online

    def asked(self) -> Node:
        if self.online != self.seen:
            self.read_anew()
        return Node(self.read, parse_list(RESERVED), self.generation, replayed=True)

    def put(self, gpu: Gpu, node: str) -> None:
        (self.root / f"sys/bus/pci/devices/{gpu.pci_bus_id}/numa_node").write_text(f"{node}\n")

    def readings(self) -> int:
        return len([*self.daemon.says("read again"), *self.daemon.says("(generation ")])


class LivingDaemon(RuleBasedStateMachine):
    """What may happen to it. It lives on from one story to the next, and ends once in each."""

    model: ClassVar[Model]

    def __init__(self) -> None:
        super().__init__()
        self.has_ended = False
        (self.model.root / ONLINE).write_text(format_list(TREE.online))
        for gpu in TREE.gpus:
            self.model.put(gpu, str(gpu.numa_node))

    @rule(asked=parameters, environ=variables)
    def plan(self, asked: dict[str, str], environ: dict[str, str]) -> None:
        assignments = [("env", f"{name}={value}") for name, value in environ.items()]
        pairs = [*asked.items(), *assignments]
        reply = self.model.daemon.get(f"/plan?{urlencode(pairs)}")
        try:
            request = parse_query(pairs)  # what cannot be read has nothing read anew
            expected = answer(self.model.asked(), request)
        except AffinityError as error:
            assert (reply.status, detail(reply)) == (error.status, str(error))  # noqa: PT017
            return
        assert (reply.status, reply.text) == (200, render(expected, request.format or "json"))
        cpus = [cpu for rank in expected.ranks for cpu in rank.cpus]
        assert environ or asked["mode"] not in UNIQUE or len(cpus) == len(set(cpus))
        assert set(cpus) <= self.model.read.online - parse_list(RESERVED)

    @rule(cpus=cpulists)
    def cpus_go_and_come(self, cpus: str) -> None:
        (self.model.root / ONLINE).write_text(f"{cpus}\n")

    @rule(gpu=st.sampled_from(TREE.gpus), node=st.sampled_from(["-1", "0", "1", "7", "x"]))
    def a_gpu_is_elsewhere(self, gpu: Gpu, node: str) -> None:
        self.model.put(gpu, node)

    @rule()
    def sighup(self) -> None:
        file, last = self.model.folder / NODE_FILE, self.model.generation
        # It is published after the answer by it, with a line of the log if the machine is another.
        eventually(lambda: read_node(file).generation == last, "its last reading is published")
        before = self.model.readings()
        self.model.read_anew()
        self.model.daemon.signal(signal.SIGHUP)
        eventually(lambda: self.model.readings() > before, "it is read anew")

    @precondition(lambda self: not self.has_ended)
    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGTERM, None]))
    def ends_and_starts_again(self, number: signal.Signals | None) -> None:
        """By a signal, or as its socket is deleted."""
        self.has_ended = True
        daemon = self.model.daemon
        daemon.socket.unlink() if number is None else daemon.signal(number)
        status = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 0, None: 1}[number]
        assert daemon.process.wait(PATIENCE) == status
        self.whole_node_file()
        self.model.start()

    @invariant()
    def whole_node_file(self) -> None:
        with suppress(FileNotFoundError):
            written = read_node(self.model.folder / NODE_FILE)
            assert written.topology.name == self.model.read.name

    @invariant()
    def a_record_is_a_line(self) -> None:
        for line in self.model.daemon.lines:
            assert "Traceback" not in line
            assert {"level", "message"} <= json.loads(line).keys()
        assert self.model.daemon.complaints == []


@pytest.fixture(scope="module", autouse=True)
def _living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    model = LivingDaemon.model = Model(tmp_path_factory.mktemp("living"))
    yield
    model.daemon.process.kill()
    model.daemon.process.wait()


def detail(reply: Reply) -> str:
    if reply.headers["content-type"] == "application/problem+json":
        return str(reply.json["detail"])
    return reply.text.removesuffix("\n").partition(": ")[2]


test_whatever_happens_to_a_daemon_it_answers_what_is_so = LivingDaemon.TestCase
test_whatever_happens_to_a_daemon_it_answers_what_is_so.settings = settings(
    FEW, stateful_step_count=30
)
