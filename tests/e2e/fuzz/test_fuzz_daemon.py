"""A daemon to which anything happens, in any order: whatever it answers is what is so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from affinityd.cpuset import format_list, parse_list
from affinityd.discovery import discover, open_tree
from affinityd.errors import AffinityError
from affinityd.request.formats import Reply as Planned
from affinityd.request.formats import render
from affinityd.request.parameters import FORMATS, parse_request
from affinityd.request.resolve import answer
from affinityd.topology import node_file
from affinityd.topology.document import to_document
from affinityd.topology.model import Gpu, Node, Topology
from tests.e2e.fuzz.inputs import FEW
from tests.support.daemons import Daemon, Reply, eventually, is_ready, spawn
from tests.support.documents import in_json
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


class LivingDaemon(RuleBasedStateMachine):
    """What the daemon has read, and the files that it will read next."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="affinityd-fuzz."))
        self.root = write_tree(TREE, self.folder / "root")
        self.daemon = self.started()

    def started(self) -> Daemon:
        self.read = self.now()
        self.seen = (self.root / ONLINE).read_text()
        self.generation = 1
        daemon = spawn(
            *(self.folder, "--root", os.fspath(self.root), "--log-format", "json"),
            *("--reserved-cpus", RESERVED),
        )
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        return daemon

    def now(self) -> Topology:
        """Return the machine as its files have it at this moment."""
        return discover(open_tree(os.fspath(self.root)), None)

    def read_anew(self) -> None:
        """Do as the daemon does when it reads the files."""
        found = self.now()
        self.generation += found != self.read
        self.read, self.seen = found, (self.root / ONLINE).read_text()

    def refreshed(self) -> None:
        """Do as the daemon does when it is asked."""
        if (self.root / ONLINE).read_text() != self.seen:
            self.read_anew()

    @rule(asked=parameters)
    def plan(self, asked: dict[str, str]) -> None:
        if is_well_formed(asked):  # else it is refused, and nothing is read for that
            self.refreshed()
        node = Node(self.read, parse_list(RESERVED), self.generation, replayed=True)
        reply = self.daemon.get(f"/plan?{urlencode(asked)}")
        expected, form = planned(node, asked)
        if isinstance(expected, AffinityError):
            assert (reply.status, detail(reply)) == (expected.status, str(expected))
            return
        assert (reply.status, reply.text) == (200, render(expected, form))
        given = [cpu for rank in expected.ranks for cpu in rank.cpus]
        assert asked["mode"] not in UNIQUE or len(given) == len(set(given))
        assert set(given) <= self.read.online - parse_list(RESERVED)

    @rule()
    def topology(self) -> None:
        self.refreshed()
        told = self.daemon.get("/topology").json
        assert told["generation"] == self.generation
        assert told["topology"] == in_json(to_document(self.read))

    @rule(cpus=cpulists)
    def cpus_go_and_come(self, cpus: str) -> None:
        (self.root / ONLINE).write_text(f"{cpus}\n")

    @rule(gpu=st.sampled_from(TREE.gpus), node=st.sampled_from(["-1", "0", "1", "7", "x"]))
    def a_gpu_is_elsewhere(self, gpu: Gpu, node: str) -> None:
        (self.root / f"sys/bus/pci/devices/{gpu.pci_bus_id}/numa_node").write_text(f"{node}\n")

    @rule()
    def sighup(self) -> None:
        before = self.readings()
        self.read_anew()
        self.daemon.signal(signal.SIGHUP)
        eventually(lambda: self.readings() > before, "it is read anew")

    def readings(self) -> int:
        """Return how many readings the log tells of."""
        told = ("read anew", "(generation ")
        return sum(any(it in line for it in told) for line in self.daemon.lines)

    @rule(number=st.sampled_from([signal.SIGKILL, signal.SIGTERM]))
    def ends_and_starts_again(self, number: signal.Signals) -> None:
        self.daemon.signal(number)
        assert self.daemon.process.wait(15) == (0 if number == signal.SIGTERM else -number)
        self.whole_node_file()
        self.daemon = self.started()

    @rule()
    def its_socket_is_deleted(self) -> None:
        self.daemon.socket.unlink()
        assert self.daemon.process.wait(15) == 1
        self.daemon = self.started()

    @invariant()
    def whole_node_file(self) -> None:
        with suppress(FileNotFoundError):
            assert node_file.read(self.folder / node_file.NAME).topology.name == self.read.name

    @invariant()
    def a_record_is_a_line(self) -> None:
        for line in self.daemon.lines:
            assert "Traceback" not in line
            assert {"level", "message"} <= json.loads(line).keys()
        assert self.daemon.complaints == []

    def teardown(self) -> None:
        self.daemon.process.kill()
        self.daemon.process.wait()
        shutil.rmtree(self.folder)


def is_well_formed(asked: dict[str, str]) -> bool:
    try:
        parse_request(asked.items())
    except AffinityError:
        return False
    return True


def planned(node: Node, asked: dict[str, str]) -> tuple[Planned | AffinityError, str]:
    """Return what the planner says, or why it says nothing, and in which format."""
    try:
        request = parse_request(asked.items())
        return answer(node, request), request.format or "json"
    except AffinityError as error:
        return error, ""


def detail(reply: Reply) -> str:
    """Return what a refusal says, in JSON or as a line."""
    if reply.headers["content-type"] == "application/problem+json":
        return str(reply.json["detail"])
    return reply.text.removesuffix("\n").partition(": ")[2]


test_whatever_happens_to_a_daemon_it_answers_what_is_so = LivingDaemon.TestCase
test_whatever_happens_to_a_daemon_it_answers_what_is_so.settings = settings(
    FEW, stateful_step_count=30
)
