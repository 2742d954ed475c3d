"""A process that was bound before: by affinityd, or by an OpenMP runtime."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from tests.support.cpusets import cpuset, needs_cpuset
from tests.support.daemons import Daemon, running
from tests.support.tiny import BOTH, FAR, NEAR, PROGRAM, exec_, tiny_tree

EXEC = (sys.executable, str(PROGRAM), "exec")
#: The CPUs that a program has after a call of affinityd.bind().
BIND = "import affinityd, os; affinityd.bind({}); print('x:', *sorted(os.sched_getaffinity(0)))"


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon on a machine with two GPUs on the node of both CPUs."""
    folder = tmp_path_factory.mktemp("one-node")
    machine = tiny_tree(folder / "machine", 0, 0)
    (machine / "sys/devices/system/node/node0/cpulist").write_text(BOTH)
    with running(folder, "--root", str(machine)) as daemon:
        yield daemon


@pytest.fixture
def shared(one_node: Daemon) -> Mapping[str, str]:
    socket = str(one_node.socket)
    return {
        "AFFINITYD_SOCKET": socket,
        "AFFINITYD_CONFIG": "/nonexistent",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


#: Pins to one of the two near CPUs, of which mode node gives both.
SECOND = ("--gpus=0,1", "--rank=1", "--mode=unique-contiguous", "--")
SHOW = ("grep", "Cpus_allowed_list", "/proc/self/status")


def bind(arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", BIND.format(arguments))


@pytest.mark.parametrize(
    ("then", "cpus"),
    [
        ((*EXEC, *SHOW), FAR),
        ((*EXEC, "--memory=local", "--nics=ucx", "--threads", "--", *SHOW), FAR),
        (bind(""), FAR),
        (bind("memory='local'"), FAR),
        ((*EXEC, "--mode=node", "--", *SHOW), BOTH),
        ((*EXEC, "--gpus=0", "--", *SHOW), BOTH),
        (bind("mode='node'"), BOTH.replace("-", " ")),
        (("env", "CUDA_VISIBLE_DEVICES=0", *EXEC, *SHOW), BOTH),
        (("env", "LOCAL_RANK=0", *EXEC, *SHOW), BOTH),
        (("env", "AFFINITYD_MODE=all", *bind("")), BOTH.replace("-", " ")),
    ],
    ids=" ".join,
)
def test_what_affinityd_pinned_it_keeps_unless_the_task_is_another(
    shared: Mapping[str, str], then: tuple[str, ...], cpus: str
) -> None:
    done = exec_(*SECOND, *then, env=shared)
    assert done.cpus == cpus
    assert [line for line in done.lines if "UCX" not in line] == []


def test_a_kept_pin_is_said_with_verbose_and_is_a_binding(shared: Mapping[str, str]) -> None:
    done = exec_(*SECOND, *EXEC, "-v", "--", "true", env=shared)
    assert done.lines == [
        f"affinityd exec: affinityd pinned this process before, to CPU {FAR}: they stay"
    ]
    code = "import affinityd; b = affinityd.bind(); print(b.pinned, b.source, b.locality, *b.cpus)"
    done = exec_(*SECOND, sys.executable, "-c", code, env=shared)
    assert (done.stdout, done.stderr) == (f"True kept local {FAR}\n", "")


@needs_cpuset
@pytest.mark.parametrize(
    ("gpus", "cpus"), [("0", NEAR), ("1", NEAR)], ids=["near is all of it", "all of it is far"]
)
def test_a_mask_that_is_not_narrowed_follows_its_cpuset(
    here: Mapping[str, str], gpus: str, cpus: str
) -> None:
    with cpuset() as group:
        (group / "cpuset.cpus").write_text(cpus)
        enter = ("sh", "-c", f'echo $$ >{group}/cgroup.procs; exec "$@"', "sh")
        look = "echo; read line; grep Cpus_allowed_list /proc/self/status"
        command = (*enter, *EXEC, f"--gpus={gpus}", "--", "sh", "-c", look)
        environ = {**os.environ, **here}
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            (group / "cpuset.cpus").write_text(BOTH)
            printed, _ = child.communicate("go\n")
    assert printed.split()[1] == BOTH
