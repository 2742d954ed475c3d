"""What set the mask of a process: real processes, OpenMP runtimes and tools of this machine."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from affinityd.audit.gather import ProcessWalk, owner_of
from affinityd.audit.model import GpuHolders, Holding
from affinityd.cpuset import CpuSet
from affinityd.linux.processes import ProcessTable
from affinityd.request.slurm_task import REMEDY
from tests.support.small_node import ALL

TWO_CPUS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a mask needs a part")

SLEEP = ("sh", "-c", "echo ready; read _")  #: no other execve(2), which would hide the environment
CPU = min(ALL)
PINNED = ("taskset", "-c", f"{CPU}")
BY_OPENMP = r"OpenMP \(libgomp\.so\S+ and its threads\); to end that: OMP_PROC_BIND=false"


@pytest.fixture
def owner() -> Iterator[Callable[..., str]]:
    """Return a function that finds what set a command's mask, given more variables."""
    started: list[subprocess.Popen[str]] = []

    def tell(
        command: Sequence[str], environ: Mapping[str, str], *, cpuset: CpuSet | None = None
    ) -> str:
        env = {"PATH": os.environ["PATH"], **environ}
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=env, start_new_session=True
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        holders = GpuHolders((Holding(process.pid, ("nvidia", 0)),))
        facts = next(iter(ProcessWalk(holders, time.monotonic() + 60, ProcessTable())))
        return str(owner_of(replace(facts, cpuset=cpuset or ALL)))

    yield tell
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)  # its children, too
        process.communicate()


@TWO_CPUS
@pytest.mark.parametrize(
    ("command", "environ", "said"),
    [
        (SLEEP, {}, "None"),
        ((*PINNED, *SLEEP), {}, "None"),
        ((*PINNED, *SLEEP), {"AFFINITYD_CPULIST": f"{CPU}"}, "affinityd (AFFINITYD_CPULIST)"),
        (SLEEP, {"AFFINITYD_CPULIST": f"{CPU}"}, f"unknown (affinityd gave CPUs {CPU})"),
        (
            (*PINNED, *SLEEP),
            {"SLURM_CPU_BIND_LIST": f"0x0,{1 << CPU:#x}"},
            f"Slurm (SLURM_CPU_BIND_LIST); {REMEDY} gives near CPUs",
        ),
        ((*PINNED, *SLEEP), {"OMP_PROC_BIND": "true"}, "None"),
    ],
    ids=lambda it: it if isinstance(it, str) else "",
)
def test_the_environment_tells_what_set_the_mask(
    owner: Callable[..., str], command: Sequence[str], environ: dict[str, str], said: str
) -> None:
    """OMP_PROC_BIND means nothing in a process without an OpenMP runtime."""
    assert owner(command, environ) == said


#: A script that runs the code `first`, and then two threads of an OpenMP runtime.
IN_PARALLEL = """
import ctypes, os, threading, time
{first}
def work(_):
    time.sleep(1)
    print("ready", flush=True)
    time.sleep(600)
work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(work)
ctypes.CDLL("libgomp.so.1").GOMP_parallel(work, None, 2, 0)
"""


@TWO_CPUS
@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "None"),
        ({"OMP_PROC_BIND": "close"}, BY_OPENMP),
        ({"OMP_PLACES": "threads", "OMP_PROC_BIND": "false"}, "None"),
        ({"GOMP_CPU_AFFINITY": f"{CPU}"}, "None"),  # the variable sets all threads alike
    ],
)
def test_an_openmp_runtime_is_named(
    owner: Callable[..., str], environ: dict[str, str], said: str
) -> None:
    command = [sys.executable, "-c", IN_PARALLEL.format(first="")]
    assert re.fullmatch(said, owner(command, environ))


def test_a_pin_cut_by_a_smaller_cpuset_is_still_affinityd_s(owner: Callable[..., str]) -> None:
    environ = {"AFFINITYD_CPULIST": f"{CPU},{CPU + 1}"}
    said = owner([*PINNED, *SLEEP], environ, cpuset=frozenset({CPU}))
    assert said == "affinityd (AFFINITYD_CPULIST)"


@TWO_CPUS
def test_a_main_thread_that_was_pinned_alone_was_not_pinned_by_openmp(
    owner: Callable[..., str],
) -> None:
    """taskset -p pins the main thread alone: the other threads may run on more CPUs."""
    first = f"threading.Timer(0.5, os.sched_setaffinity, (os.getpid(), [{CPU}])).start()"
    said = owner([sys.executable, "-c", IN_PARALLEL.format(first=first)], {})
    assert said == "unknown (only the main thread was moved)"
