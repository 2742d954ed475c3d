"""The real commands find the GPUs of processes, as the tables of numberings and launchers say.

A daemon replays each machine; in a mount namespace processes have the machine's device files.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from urllib.parse import urlencode

import pytest

from affinityd.cpuset import format_list, parse_list
from affinityd.json_codec import dumps
from affinityd.request.environment import READ
from affinityd.topology.model import Gpu
from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.machines.sysfs_tree import nvml_report, put, write_tree
from tests.support.numberings import MACHINES, NONE, UNKNOWN, Case, held_out, numberings
from tests.support.paths import REPOSITORY
from tests.support.pods import Pod
from tests.support.tables import table, words
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, PROGRAM, tiny

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")

DRIVERS = {"nvidia": "nvidiactl", "amd": "kfd", "huawei": "davinci_manager"}
FILES = {"minor": "nvidia", "davinci": "davinci", "accel": "accel/accel", "drm": "dri/renderD"}
VENDORS = {"amd": "0x1002", "8086": "0x8086", "1da3": "0x1da3"}
RANKS = ("1", "alone")  #: of numberings.tsv; the other ranks find their GPUs in the same ways
MPS = "AFFINITYD_MPS_DEVICES"

#: Runs each command of a list of [device files, words, environment], with these files in /dev.
DRIVER = """
import json, os, stat, subprocess, sys
results, there = [], []
for names, words, env in json.load(sys.stdin):
    for name in there:
        os.unlink(f"/dev/{name}")
    for name in names:
        os.makedirs(os.path.dirname(f"/dev/{name}"), exist_ok=True)
        os.mknod(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(240, 0))
    there = names
    for _ in range(3):  # a busy machine may not read an MPS daemon's environment in 0.3 s
        done = subprocess.run(words, env=env, capture_output=True, text=True)
        if "is not known; name" not in done.stderr: break
    results.append([done.returncode, done.stdout, done.stderr])
print(json.dumps(results))
"""
#: Mounts another /dev, but keeps /dev/shm, where the tests' own folder may be.
NAMESPACE = """
mount --bind /dev/shm "$1/dev/shm" && mount --bind "$1/class" /sys/class &&
mount --rbind "$1/dev" /dev && shift && exec "$@"
"""

Command = tuple[list[str], list[str], Mapping[str, str]]
Result = tuple[int, str, str]


def in_namespace(folder: Path, gpus: Sequence[Gpu], commands: Sequence[Command]) -> list[Result]:
    """Run commands with the device files that each names; return status, stdout and stderr."""
    (folder / "dev/shm").mkdir(parents=True)
    (folder / "class").mkdir()
    os.mknod(folder / "dev/null", 0o666 | 0o020000, os.makedev(1, 3))
    for gpu in gpus:
        for file in gpu.device_files:
            kind, _, number = file.partition(":")
            name = {"drm": f"drm/renderD{number}", "accel": f"accel/accel{number}"}.get(kind)
            if name:
                put(folder / f"class/{name}/device/vendor", VENDORS[gpu.vendor])
    words = ["unshare", "--mount", "sh", "-c", NAMESPACE, "sh", str(folder), sys.executable, "-c"]
    done = subprocess.run(
        [*words, DRIVER],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results: list[Result] = json.loads(done.stdout)
    return results


def device_files(case: Case) -> list[str]:
    """Return the names in /dev of a process's device files, and of its driver's files."""
    driver = DRIVERS.get(case.topology.gpus[0].vendor)
    names = [file.partition(":") for file in case.granted]
    return [*([driver] if driver else []), *(f"{FILES[kind]}{no}" for kind, _, no in names)]


@contextmanager
def mps_daemons(folder: Path, cases: Sequence[Case]) -> Iterator[Mapping[str, str]]:
    """Yield the folder of an MPS daemon for each list of GPUs that such a daemon may have."""
    program = folder / "nvidia-cuda-mps-control"
    folder.mkdir()
    program.symlink_to("/bin/sleep")
    folders = {}
    with ExitStack() as stack:
        for number, listed in enumerate({case.environ.get(MPS, UNKNOWN) for case in cases}):
            pipe = folder / f"{number}"
            pipe.mkdir()
            with socket.socket(socket.AF_UNIX) as control:
                control.bind(f"{pipe}/control")
            folders[listed] = str(pipe)
            if listed in {UNKNOWN, "unknown"}:
                continue
            environ = {"CUDA_VISIBLE_DEVICES": listed}
            daemon = stack.enter_context(subprocess.Popen([program, "600"], env=environ))
            stack.callback(daemon.kill)
            (pipe / f"{program.name}.pid").write_text(f"{daemon.pid}")
            while Path(f"/proc/{daemon.pid}/comm").read_text() != "nvidia-cuda-mps\n":
                pass
        yield folders


def environ_of(case: Case, folders: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a process, which may be a client of a real MPS daemon."""
    environ = dict(case.environ)
    if MPS in environ or "CUDA_MPS_PIPE_DIRECTORY" in environ:
        environ["CUDA_MPS_PIPE_DIRECTORY"] = folders[environ.pop(MPS, UNKNOWN)]
    return environ


def said(stderr: str) -> str:
    """Return the GPU that `exec -v` prints for its process."""
    line = stderr.splitlines()[0]
    if found := re.search(r": GPUs? ([0-9,-]+), ", line):
        return found[1]
    if ": GPU unknown, " in line:
        return "node"
    assert line.endswith("; the command runs unpinned"), stderr
    return NONE if "no GPU" in line else UNKNOWN


def places(case: Case) -> set[str]:
    """Return the right sets of nodes, as lists; UNKNOWN stands for no node."""
    right = set()
    for outcome in case.right:
        if outcome.startswith("node "):
            right.add(outcome.removeprefix("node "))
        elif outcome in {NONE, UNKNOWN}:
            right.add(UNKNOWN)
        else:
            gpus = [case.topology.gpus[index] for index in parse_list(outcome)]
            right.add(format_list({gpu.numa_node or 0 for gpu in gpus}))
    return right


def cases_of(machine: str) -> list[Case]:
    rows = [case for case in numberings() if case.name.endswith(RANKS)]
    return [case for case in chain(rows, held_out()) if case.machine == machine]


@pytest.mark.parametrize("machine", MACHINES)
def test_exec_and_run_find_the_right_gpu_in_each_numbering(machine: str, tmp_path: Path) -> None:
    topology, cases = MACHINES[machine], cases_of(machine)
    tree = write_tree(topology, tmp_path / "tree")
    if any(gpu.mig for gpu in topology.gpus):
        (tree / "nvml.json").write_text(dumps(nvml_report(topology)))
    wrong: list[object] = []
    with (
        running(tmp_path / "run", "--root", str(tree)) as daemon,
        mps_daemons(tmp_path / "mps", cases) as folders,
    ):
        own = {"AFFINITYD_SOCKET": str(daemon.socket), "AFFINITYD_TIMEOUT": "60"}
        base = {"PATH": os.environ["PATH"], "AFFINITYD_CONFIG": "/nonexistent", **own}
        commands: list[Command] = [
            (
                device_files(case),
                [sys.executable, str(PROGRAM), "exec", "-v", "--", "true"],
                {**base, **environ_of(case, folders)},
            )
            for case in cases
        ]
        results = in_namespace(tmp_path, topology.gpus, commands)
        for case, (status, _, stderr) in zip(cases, results, strict=True):
            assert status == 0, stderr
            right = {"node" if text.startswith("node ") else text for text in case.right}
            if said(stderr) not in right:
                wrong.append((case.name, "exec", case.environ, stderr, case.right))
        pod = Pod(tmp_path / "pod", daemon.socket)
        for case in cases:
            if not case.files or case.environ.get(MPS, "unknown") != "unknown":
                continue  # a container has files, and reads no daemon's list
            pod.has(*device_files(case)[-len(case.files) :])
            environ = {"AFFINITYD_CPUS": "none", **own, **environ_of(case, folders)}
            told = pod.run(cpus=topology.online, **environ)
            has = told.cpus or frozenset()
            nodes = {core.node or 0 for core in topology.cores if has.intersection(core.cpus)}
            if (format_list(nodes) or UNKNOWN) not in places(case):
                wrong.append((case.name, "run", case.environ, told.lines, case.right))
    assert wrong == []


# Ranks of launchers.

#: For each environment of a list BIND prints the CPUs of a process that binds itself, and VERIFY
#: prints the GPUs that are found for another process.
BIND = """
import json, os, sys, affinityd
from affinityd.cpuset import format_list
affinityd.bind
for env in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        os.environ.clear()
        os.environ.update(env)
        affinityd.bind()
        print(format_list(os.sched_getaffinity(0)), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""
VERIFY = """
import json, subprocess, sys, affinityd
from affinityd.cpuset import format_list
for env in json.loads(sys.argv[1]):
    with subprocess.Popen(["sleep", "600"], env=env) as process:
        while not open(f"/proc/{process.pid}/environ").read(1):
            pass  # execve(2) has not yet set it
        (judged,) = affinityd.verify(process.pid)
        print(format_list(gpu.index for gpu in judged.near.gpus))
        process.kill()
"""
PROLOG = (
    "sh",
    "-c",
    'SLURM_TASK_PID=$$ exec sh "$1"',
    "sh",
    str(REPOSITORY / "slurm/task_prolog.sh"),
)


@dataclass(frozen=True)
class Launched:
    """A launcher's rank that sees GPUs 0 and 1, and should use `gpus`."""

    environ: Mapping[str, str]
    gpus: str
    is_slurm_s: bool

    @property
    def cpus(self) -> str:
        """The CPUs near `gpus`: GPU 0 is near the first CPU, and GPU 1 near the second."""
        return {"0": NEAR, "1": FAR, "0,1": BOTH}[self.gpus]


def launched() -> Iterator[Launched]:
    for _, variables, *expected in table("launchers.tsv"):
        is_slurm_s = variables.startswith("SLURM") and "RANK" not in variables
        for rank, size, gpus in zip((0, 0, 1), (1, 2, 2), expected, strict=True):
            tasks = ",".join(map(str, range(size)))
            environ = words(variables.format(rank=rank, size=size, tasks=tasks))
            more = {"CUDA_VISIBLE_DEVICES": "0,1", "AFFINITYD_CPUS": "none"}
            yield Launched({**environ, **more}, gpus, is_slurm_s)


def test_each_rank_of_each_launcher_gets_its_gpus_from_every_client(tmp_path: Path) -> None:
    topology, ranks = tiny(), list(launched())
    tree = write_tree(topology, tmp_path / "tree")
    with running(tmp_path / "run", "--root", str(tree)) as daemon:
        own = {"AFFINITYD_SOCKET": str(daemon.socket), "AFFINITYD_TIMEOUT": "60"}
        base = {"PATH": os.environ["PATH"], "AFFINITYD_CONFIG": "/nonexistent", **own}
        environs = [{**base, **rank.environ} for rank in ranks]
        listed = json.dumps(environs)
        of_slurm = [rank for rank in ranks if rank.is_slurm_s]
        run: list[tuple[list[str], Mapping[str, str]]] = [
            *(([sys.executable, str(PROGRAM), "exec", "--", *LOOK], env) for env in environs),
            ([sys.executable, "-c", BIND, listed], base),
            ([sys.executable, "-c", VERIFY, listed], base),
            *(([*PROLOG], {**base, **rank.environ}) for rank in of_slurm),
        ]
        devices = ["nvidiactl", "nvidia0", "nvidia1"]
        results = in_namespace(tmp_path, topology.gpus, [(devices, *each) for each in run])
        for (status, _, stderr), (command, _) in zip(results, run, strict=True):
            assert status == 0, (command, stderr)
        outs = [stdout for _, stdout, _ in results]
        prologs = [re.findall("AFFINITYD_CPULIST=(.*)", out) for out in outs[len(ranks) + 2 :]]
        pod = Pod(tmp_path / "pod", daemon.socket)
        pod.has(*devices[1:])
        found = {
            "exec": [out.split(":")[1].strip() for out in outs[: len(ranks)]],
            "bind": outs[len(ranks)].split(),
            "verify": [
                {"0": NEAR, "1": FAR, "0-1": BOTH}[gpus] for gpus in outs[len(ranks) + 1].split()
            ],
            "plan": [by_http(daemon, rank.environ) for rank in ranks],
        }
        for client, cpus in found.items():
            assert dict(zip(map(str, ranks), cpus, strict=True)) == {
                str(rank): rank.cpus for rank in ranks
            }, client
        assert prologs == [[rank.cpus] for rank in of_slurm]
        for rank in ranks:
            if not rank.is_slurm_s:
                told = pod.run(cpus=topology.online, **own, **rank.environ)
                assert format_list(told.cpus or ()) == rank.cpus, (rank, told.lines)


def by_http(daemon: Daemon, environ: Mapping[str, str]) -> str:
    """Return the CPUs in /plan's answer to a script that sends these variables."""
    query = [
        ("cpuset", BOTH),
        *(("env", f"{name}={text}") for name, text in environ.items() if name in READ),
    ]
    cpus: str = daemon.plan(urlencode(query))["cpulist"]
    return cpus
