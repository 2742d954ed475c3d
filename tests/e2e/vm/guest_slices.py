"""Runs in the virtual machine: steps of Slurm 24.11 on cgroup v2, with slurm/ and task/affinity."""

import shutil
import socket
from pathlib import Path

from tests.e2e.slurm.rig import USER, Setup, slurm
from tests.e2e.vm.inside import GROUPS, RELEASE, Document, addresses, bring, output, stage
from tests.e2e.vm.two_nodes import GPU_NODES
from tests.e2e.vm.warm import affinityd
from tests.support.daemons import running

MODES = ("node", "unique-contiguous")
#: A launch → the options of srun; tests/data/slurm_launches has the facts of further launches.
LAUNCHES = {
    "a GPU for each task": "-n4 -c4 --gpus-per-task=1",
    "all GPUs for all tasks": "-n8 -c4 --gres=gpu:8",
    "more tasks than GPUs": "-n5 -c4 --gres=gpu:4",
    "slices of an odd size": "-n6 -c3 --gres=gpu:6",
}

#: The masks of LUMI's recipe, in the order in which LUMI's wrapper picks GPUs.
MASKS = ",".join(f"{0xF << (4 * first):x}" for first in (4, 5, 6, 7, 0, 1, 2, 3))
CHOICES = {
    "masks by hand": f"-n8 -c4 --gres=gpu:8 --gpu-bind=none --cpu-bind=mask_cpu:{MASKS}",
    "in the order of cores": "-n8 -c4 --gres=gpu:8 --gpu-bind=none -m block:block",
}
CHOSEN = "echo $AFFINITYD_CPULIST $CUDA_VISIBLE_DEVICES $AFFINITYD_LOCALITY"

INSTALLED = "/etc/slurm/affinityd"
SCRIPTS = Path("/checkout/slurm")
RUN = Path("/tmp/affinityd")  # noqa: S108 - nobody else is here; jobs find it at /run/affinityd

#: Exports the mask that Slurm gave a task, and then runs affinityd's TaskProlog.
PROLOG = f"""#!/bin/sh
while read -r name value; do
    [ "$name" != Cpus_allowed_list: ] || echo "export BEFORE=$value"
done <"/proc/$SLURM_TASK_PID/status"
exec {INSTALLED}/task_prolog.sh
"""
#: Prints a task's facts. Opening a device file fails with ENXIO if allowed, else with EPERM.
LOOK = r"""
while read -r name value; do
    [ "$name" != Cpus_allowed_list: ] || echo "after $value"
done </proc/self/status
echo "before $BEFORE"
echo "task $SLURM_LOCALID $SLURM_GTIDS $SLURM_GPUS_ON_NODE"
cat /dev/nvidia* 2>&1 | sed -n 's/.*nvidia\([0-9]*\): No such device.*/gpu \1/p'
"""


def main() -> Document:
    bring("31", online=True)
    furnish()
    have_patience(Path("/", RELEASE, "usr/bin"))
    hold_gpus()
    stage("the daemon starts")
    with running(RUN):
        copy = shutil.copytree(SCRIPTS, RUN / "scripts")
        (copy / "prolog").write_text(PROLOG)
        (copy / "prolog").chmod(0o755)
        setup = Setup(
            gpus=[f"{minor}" for minor in range(len(GPU_NODES))],
            task_plugin="task/affinity,task/cgroup",
            constrain_devices=True,
            conf=[
                "MessageTimeout=100",  # an emulated CPU is slow
                f"Prolog={INSTALLED}/prolog.sh",
                f"TaskProlog={INSTALLED}/prolog",
            ],
            topology="Sockets=2 CoresPerSocket=8 ThreadsPerCore=2",
            gres_conf=affinityd("slurm", "gres-conf")["stdout"],
            binds={RUN: "/run/affinityd", copy: INSTALLED},
            release="24.11",
            root=Path("/", RELEASE),
        )
        stage("Slurm starts")
        seen: Document = {}
        with slurm(setup, USER) as cluster:
            for name, words in LAUNCHES.items():
                stage(name)
                seen[name] = {}
                for mode in MODES:
                    env = {"AFFINITYD_MODE": mode}
                    seen[name][mode] = cluster.srun(*words.split(), "sh", "-c", LOOK, env=env)
            env = {"AFFINITYD_CHOOSE_GPU": "yes"}
            for name, words in CHOICES.items():
                stage(name)
                seen[name] = cluster.srun(*words.split(), "sh", "-c", CHOSEN, env=env)
        return seen


def furnish() -> None:
    """Make the files and devices of a node that an unpacked image lacks."""
    Path("/etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\n{USER}:x:5:60::/:/bin/sh\n")
    Path("/etc/group").write_text(f"root:x:0:\n{USER}:x:60:\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 {socket.gethostname()}\n")
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        Path(f"/dev/{name}").symlink_to(f"/proc/self/{target}")
    for name in ("pts", "shm"):
        Path(f"/dev/{name}").mkdir()
    output("ip", "address", "add", "10.0.0.1", "dev", "lo")  # getaddrinfo(3), AI_ADDRCONFIG
    slice_ = GROUPS / "system.slice"  # where slurmd has its jobs
    slice_.mkdir()
    for folder in (GROUPS, slice_):
        (folder / "cgroup.subtree_control").write_text("+cpuset +pids")


def have_patience(folder: Path) -> None:
    """Raise the timeouts of the folder's curl in the scripts: an emulated CPU is slow."""
    (folder / "curl").rename(folder / "curl.debian")
    curl = folder / "curl"
    curl.write_text('#!/bin/sh\nexec /usr/bin/curl.debian "$@" --max-time 60\n')
    curl.chmod(0o755)


def hold_gpus() -> None:
    """Make files as if NVIDIA's driver held the GPUs, so that these count as NVIDIA's."""
    output("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for minor, address in enumerate(addresses()):
        folder = Path("/proc/driver/nvidia/gpus", address)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {minor}\n")
    Path("/proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")
