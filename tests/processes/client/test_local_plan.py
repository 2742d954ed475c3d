"""Planning without a daemon, and that ranks which never speak to each other do not overlap."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd import machines
from affinityd.client import local_plan
from affinityd.config import file
from affinityd.cpuset import CpuSet
from affinityd.discovery import discover, open_tree
from affinityd.errors import AffinityError, InvalidRequestError, TreeError
from affinityd.request import environment
from affinityd.topology import node_file as nodefile
from affinityd.topology.model import Node, Topology
from tests.support.machines.facts import machine

NODE = Node(machine("dgx-a100"), frozenset({0, 128}), generation=3)


@pytest.fixture
def socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return where a daemon's socket would be, where no settings say anything of a machine."""
    for name in ("ROOT", "MACHINE", "RESERVED_CPUS", "SOCKET"):
        monkeypatch.delenv(f"AFFINITYD_{name}", raising=False)
    monkeypatch.setenv("AFFINITYD_CONFIG", str(tmp_path / "none"))
    (tmp_path / "run").mkdir()
    return str(tmp_path / "run" / "affinityd.sock")


def node_file(socket: str) -> Path:
    return Path(socket).with_name("node.json")


# The node.


def test_the_node_is_the_one_that_a_daemon_published(socket: str) -> None:
    nodefile.write(node_file(socket), NODE)
    known = local_plan.find_node(["/nowhere/affinityd.sock", socket])
    assert known.source == "node.json"
    assert (known.node.topology, known.node.reserved) == (NODE.topology, NODE.reserved)


@pytest.mark.parametrize("spoilt", ["run/node.json", "run", "."])
def test_what_others_could_have_put_there_is_not_believed(socket: str, spoilt: str) -> None:
    nodefile.write(node_file(socket), NODE)
    part = (node_file(socket).parents[1] / spoilt).resolve()
    part.chmod(0o777)
    known = local_plan.find_node([socket])
    assert known.source == "sysfs"
    assert known.doubt is not None
    assert known.doubt.startswith(f"{node_file(socket)} is not trusted: others may write to {part}")
    assert local_plan.find_node([socket, "/nonexistent/s"]).doubt == known.doubt


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes another's files")
def test_another_user_s_node_is_believed_where_he_is_named(
    socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodefile.write(node_file(socket), NODE)
    os.chown(node_file(socket), 1234, 1234)
    known = local_plan.find_node([socket])
    assert (known.source, "belongs to uid 1234" in str(known.doubt)) == ("sysfs", True)
    monkeypatch.setenv("AFFINITYD_DAEMON_UID", "1234")
    known = local_plan.find_node([socket])
    assert (known.source, known.doubt) == ("node.json", None)


def test_without_one_it_is_this_machine(socket: str) -> None:
    known = local_plan.find_node([socket])
    assert known.source == "sysfs"
    assert known.node.topology == discover(open_tree("/"), None)


def test_what_was_replayed_beside_the_default_socket_is_no_other_s_node(
    socket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "SYSTEM_SOCKET", socket)
    nodefile.write(node_file(socket), replace(NODE, replayed=True))
    assert local_plan.find_node([socket]).source == "sysfs"
    nodefile.write(node_file(socket), NODE)
    assert local_plan.find_node([socket]).source == "node.json"
    monkeypatch.setattr(file, "SYSTEM_SOCKET", "/elsewhere")
    nodefile.write(node_file(socket), replace(NODE, replayed=True))
    assert local_plan.find_node([socket]).source == "node.json"


def test_settings_say_which_machine_that_is(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFFINITYD_MACHINE", "mi250x")
    monkeypatch.setenv("AFFINITYD_RESERVED_CPUS", "0,8")
    known = local_plan.find_node([socket])
    assert (known.node.topology, known.node.reserved) == (machine("mi250x"), frozenset({0, 8}))
    assert known.source == "sysfs"


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("MACHINE", "dgx", TreeError),
        ("ROOT", "/proc/self/fdinfo", TreeError),
        ("RESERVED_CPUS", "zero", InvalidRequestError),
    ],
)
def test_settings_that_lead_nowhere_are_told(
    socket: str, monkeypatch: pytest.MonkeyPatch, name: str, text: str, error: type[AffinityError]
) -> None:
    monkeypatch.setenv(f"AFFINITYD_{name}", text)
    with pytest.raises(error):
        local_plan.find_node([socket])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"null",
        b'{"version": 2}',
        b"\xff\xfe",
        b"\0" * 4096,
        b"[" * 100_000,
        b'{"version":' + b"1" * 5000 + b"}",
    ],
    ids=[
        *("empty", "an empty object", "null", "of a later version", "no UTF-8", "NULs"),
        *("too deep for a parser", "too long a number"),
    ],
)
def test_a_file_that_is_no_node_is_passed_over(socket: str, content: bytes) -> None:
    node_file(socket).write_bytes(content)
    assert local_plan.find_node([socket]).source == "sysfs"


def test_a_file_that_is_torn_anywhere_is_passed_over(socket: str) -> None:
    nodefile.write(node_file(socket), NODE)
    whole = node_file(socket).read_bytes().rstrip()
    for length in range(0, len(whole), len(whole) // 50):
        node_file(socket).write_bytes(whole[:length])
        assert local_plan.find_node([socket]).source == "sysfs"


def test_a_folder_in_the_file_s_place_is_passed_over(socket: str) -> None:
    node_file(socket).mkdir()
    assert local_plan.find_node([socket]).source == "sysfs"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_a_file_that_may_not_be_read_is_passed_over(tmp_path: Path) -> None:
    nodefile.write(tmp_path / "node.json", NODE)
    (tmp_path / "node.json").chmod(0o600)
    tmp_path.chmod(0o755)
    code = """
import os
from affinityd.client import local_plan
os.setgroups([]), os.setgid(65534), os.setuid(65534)
print(local_plan.find_node(["affinityd.sock"]).source)"""
    env = {"PYTHONPATH": os.pathsep.join(sys.path), "AFFINITYD_CONFIG": "none"}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=env, cwd=tmp_path) == b"sysfs\n"


SMALL = Node(machine("gh200x4"))


def places(value: object, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every piece of a JSON value."""
    yield above
    items: Mapping[Any, object] = {}
    if isinstance(value, dict):
        items = value
    elif isinstance(value, list):
        items = dict(enumerate(value))
    for key, item in items.items():
        yield from places(item, (*above, key))


@given(st.data())
def test_a_published_node_that_makes_no_sense_never_ends_in_another_kind_of_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.getbasetemp() / "node.json"
    nodefile.write(path, SMALL)
    document = json.loads(path.read_text())
    where = data.draw(st.sampled_from(sorted(places(document), key=str)[1:]))
    piece = document
    for key in where[:-1]:
        piece = piece[key]
    piece[where[-1]] = data.draw(
        st.sampled_from([None, 0, -1, 10**9, "", "0-3", "x", [], {}, [[]], [0], True, 1.5])
    )
    path.write_text(json.dumps(document))
    node = local_plan.find_node([str(path.with_name("affinityd.sock"))]).node
    with suppress(AffinityError):
        local_plan.plan_on_node(node, [{"gpus": "0", "mode": "exclusive", "share": "node"}])


# Ranks of one job.


@dataclass(frozen=True)
class Sibling:
    """A rank as its environment shows it, and the GPUs that it drives."""

    environ: Mapping[str, str]
    parent: Mapping[str, str] | None
    gpus: Sequence[int]


VARIABLES = {
    "nvidia": "CUDA_VISIBLE_DEVICES",
    "amd": "ROCR_VISIBLE_DEVICES",
    "huawei": "ASCEND_RT_VISIBLE_DEVICES",
}
#: Returns the n-th of so many siblings, on these GPUs, by that variable.
Launch = Callable[[int, int, Sequence[int], str], Sibling]


def named(*gpus: int) -> str:
    return ",".join(map(str, gpus))


def torchrun(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """All inherit the job's GPUs, in turn where there are more ranks than those."""
    whole = {variable: named(*job)}
    ranks = {"LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(of)}
    return Sibling({**whole, **ranks}, whole, [job[n % len(job)]])


def mpirun(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """`mpirun -x`: all are given the job's GPUs, which mpirun itself does not have."""
    ranks = {"OMPI_COMM_WORLD_LOCAL_RANK": str(n), "OMPI_COMM_WORLD_LOCAL_SIZE": str(of)}
    return Sibling({**ranks, variable: named(*job)}, {}, [job[n % len(job)]])


def mpirun_by_a_wrapper(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """A script gives each rank its own GPU."""
    own = job[n % len(job)]
    shared = mpirun(n, of, job, variable)
    return Sibling({**shared.environ, variable: named(own)}, {variable: named(*job)}, [own])


def mpirun_in_a_batch_script(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """A script gives each rank its own GPU, and Slurm names the job's."""
    own = mpirun_by_a_wrapper(n, of, job, variable)
    batch = {"SLURM_JOB_ID": "9", "SLURM_LOCALID": "0", "SLURM_JOB_GPUS": named(*job)}
    return Sibling({**batch, **own.environ}, own.parent, own.gpus)


def srun(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """Slurm shows all of the step's GPUs to each task; its own parent cannot be read."""
    step = {
        "SLURM_JOB_ID": "9",
        "SLURM_STEP_ID": "0",
        "SLURM_LOCALID": str(n),
        "SLURM_GTIDS": named(*range(of)),
        "SLURM_GPUS_ON_NODE": str(len(job)),
    }
    return Sibling({**step, variable: named(*job)}, None, [job[n % len(job)]])


def srun_bound(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """`--gpus-per-task`, `--ntasks-per-gpu`: neighbours share, or have several each."""
    own = job[n * len(job) // of : max(n * len(job) // of + 1, (n + 1) * len(job) // of)]
    return Sibling({**srun(n, of, job, variable).environ, variable: named(*own)}, None, own)


def srun_bound_and_told(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """A site says the job's GPUs."""
    bound = srun_bound(n, of, job, variable)
    return Sibling({**bound.environ, "AFFINITYD_JOB_GPUS": named(*job)}, None, bound.gpus)


def srun_with_local_rank(n: int, of: int, job: Sequence[int], variable: str) -> Sibling:
    """`export LOCAL_RANK=$SLURM_LOCALID`, as frameworks want it."""
    bound = srun_bound(n, of, job, variable)
    return Sibling({**bound.environ, "LOCAL_RANK": str(n)}, None, bound.gpus)


def halves(topology: Topology) -> CpuSet:
    """Return the first half of every NUMA node's cores."""
    return frozenset(
        cpu
        for cores in topology.node_cores.values()
        for core in cores[: (len(cores) + 1) // 2]
        for cpu in core.cpus
    )


def jobs(topology: Topology) -> Sequence[Sequence[int]]:
    count = len(topology.gpus)
    return [range(count), range(count // 2), range(1, count, 2)]


#: So many ranks on so many GPUs.
ONE_EACH, SHARED, TWO_EACH = (1, 1), (2, 1), (1, 2)


@pytest.mark.parametrize(
    ("launch", "ratio"),
    [
        *((launch, ratio) for launch in (torchrun, mpirun, srun) for ratio in (ONE_EACH, SHARED)),
        (mpirun_by_a_wrapper, ONE_EACH),
        (mpirun_in_a_batch_script, SHARED),
        *((mpirun_in_a_batch_script, ratio) for ratio in (ONE_EACH, SHARED)),
        *((srun_bound, ratio) for ratio in (ONE_EACH, TWO_EACH, SHARED)),
        *((srun_bound_and_told, ratio) for ratio in (ONE_EACH, TWO_EACH, SHARED)),
        *((srun_with_local_rank, ratio) for ratio in (ONE_EACH, SHARED)),
    ],
    ids=lambda it: f"{it[0]}-on-{it[1]}" if isinstance(it, tuple) else it.__name__,
)
@given(data=st.data())
def test_siblings_never_overlap_in_a_unique_mode(
    launch: Launch, ratio: tuple[int, int], data: st.DataObject
) -> None:
    """Each asks by itself, and each gets CPUs for its own GPU."""
    topology = machine(data.draw(st.sampled_from(machines.NAMES)))
    job = data.draw(st.sampled_from(jobs(topology)))
    cpus = data.draw(st.sampled_from([topology.online, halves(topology)]))
    unique = ["unique_contiguous", "unique_interleaved", "exclusive", "single_unique"]
    chosen = {
        "mode": data.draw(st.sampled_from(unique)),
        "scope": data.draw(st.sampled_from(["node", "socket"])),
        **data.draw(st.sampled_from([{}, {"share": "auto"}, {"balanced": "false"}])),
    }
    count = len(job) * ratio[0] // ratio[1]
    variable = VARIABLES[topology.gpus[0].vendor]
    siblings = [launch(n, count, job, variable) for n in range(count)]
    replies = [
        local_plan.plan_on_node(
            Node(topology), environment.process_questions(chosen, it.environ, cpus, it.parent)
        )
        for it in siblings
    ]
    for sibling, reply in zip(siblings, replies, strict=True):
        assert {rank.gpu.index for rank in reply.ranks} == {*sibling.gpus}
        assert reply.cpus <= cpus
    for one, other in combinations(replies, 2):
        assert not one.cpus & other.cpus


@pytest.mark.parametrize("mode", ["even", "core_complex"])
@pytest.mark.parametrize("launch", [srun_bound, mpirun_by_a_wrapper])
def test_modes_without_a_block_for_each_gpu_know_the_siblings(launch: Launch, mode: str) -> None:
    """GPUs 0 and 1 are on one node, of several LLC groups."""
    topology = machine("dgx-a100")
    siblings = [launch(n, 2, range(2), "CUDA_VISIBLE_DEVICES") for n in range(2)]
    one, other = (
        local_plan.plan_on_node(
            Node(topology),
            environment.process_questions({"mode": mode}, it.environ, topology.online, it.parent),
        )
        for it in siblings
    )
    assert not one.cpus & other.cpus


@pytest.mark.parametrize("mode", ["node", "all", "socket"])
@pytest.mark.parametrize("launch", [torchrun, mpirun, mpirun_by_a_wrapper, srun, srun_bound])
def test_modes_that_take_nothing_away_put_a_rank_near_its_gpu(launch: Launch, mode: str) -> None:
    topology = machine("dgx-a100")
    for n in range(8):
        it = launch(n, 8, range(8), "CUDA_VISIBLE_DEVICES")
        asked = environment.process_questions(
            {"mode": mode}, it.environ, topology.online, it.parent
        )
        reply = local_plan.plan_on_node(Node(topology), asked)
        assert reply.cpus >= topology.cpus_of_node(topology.gpus[n].numa_node)
        assert reply.locality == "local"


@pytest.mark.parametrize("mode", ["node", "exclusive"])
def test_a_task_with_two_gpus_of_its_own_is_near_both(mode: str) -> None:
    topology = machine("dgx-a100")
    it = srun_bound(0, 2, (1, 2, 5, 6), "CUDA_VISIBLE_DEVICES")
    asked = environment.process_questions({"mode": mode}, it.environ, topology.online, it.parent)
    reply = local_plan.plan_on_node(Node(topology), asked)
    assert [rank.gpu.index for rank in reply.ranks] == [1, 2]
    for node in (3, 1):
        assert reply.cpus & topology.cpus_of_node(node)
