"""Runs in the virtual machine: Slurm on cgroup v2, with the scripts of slurm/, and prints its jobs.

It judges nothing: where the tasks should have been is said in test_slurm.py.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.slurm.rig import USER, Setup, Slurm, slurm
from tests.e2e.vm.driver import hold_gpus
from tests.e2e.vm.inside import AFFINITYD, GROUPS, bring, output, stage
from tests.e2e.vm.jobs import ASKING, JOBS, MINORS, NODE, OPEN_JOBS, UNIQUE, Asking, Job
from tests.support.daemons import eventually, running

INSTALLED = "/etc/slurm/affinityd"
SCRIPTS = Path("/checkout/slurm")
RUN = Path("/tmp/affinityd")  # noqa: S108 - nobody else is here; jobs find it at /run/affinityd
MEETING = Path("/tmp/meeting")  # noqa: S108

#: What a task says: its mask, its job's CPUs, the GPUs that it sees, its variables, and the device
#: files that it can open. No driver serves them: ENXIO, where it may, and EPERM, where it may not.
#: It starts few programs, which take long here.
LOOK = r"""
while read -r name value; do
    [ "$name" != Cpus_allowed_list: ] || echo "$name $value"
done </proc/self/status
IFS=: read -r _ _ group </proc/self/cgroup
read -r cpus <"/sys/fs/cgroup$group/cpuset.cpus.effective"
echo "cpuset $cpus"
echo "visible $CUDA_VISIBLE_DEVICES"
{ env; cat /dev/nvidia* 2>&1; } | grep -E "^AFFINITYD_|No such device"
"""

#: Looks, and asks whether it is where its GPU is; it may read its GPU's device file alone.
VERIFY = f"""{LOOK}
cd /checkout && PYTHONPATH=/checkout {sys.executable} -m affinityd verify 2>&1
echo "verify $?"
"""

#: Looks when the tasks of two jobs are there.
LOOK_TOGETHER = f"""
: >{MEETING}/$SLURM_JOB_ID.$SLURM_PROCID
while [ "$(ls {MEETING} | wc -l)" -lt 4 ]; do sleep 0.1; done
{LOOK}
"""

#: A batch script, whose step looks as well as it does.
BATCH = f"{LOOK}\necho and its step\nsrun --label sh -c '{LOOK}'"


def main() -> None:
    """Run the jobs, one after another, and two at once."""
    bring("31", online=True)
    furnish()
    stage("the daemon starts")
    with running(RUN):
        json.dump(report(), sys.stdout)
    stage("done")


def report() -> dict[str, Any]:
    """Return what the tasks say, of jobs that may open their own GPUs alone, and all."""
    stage("Slurm starts")
    seen: dict[str, Any] = {}
    gres_conf = output(*AFFINITYD, "slurm", "gres-conf")
    with cluster(gres_conf, constrain_devices=True) as it:
        seen["jobs"] = all_of(it, JOBS)
        stage("more jobs")
        seen["socket"] = look(it, "-n2 --gres=gpu:2 -c16", UNIQUE, AFFINITYD_SCOPE="socket")
        seen["user's"] = look(it, "-n2 --gres=gpu:2 -c8 --cpu-bind=map_cpu:0,2", NODE)
        seen["batch"] = it.sbatch(BATCH, "-n2", "--gres=gpu:2", "-c8", env=mode(UNIQUE))
        seen["together"] = together(it)
        stage("jobs that keep what they asked for")
        seen["asking"] = {name: asking(it, job) for name, job in ASKING.items()}
        eventually(lambda: not any((RUN / "jobs").iterdir()), "the epilog has forgotten the jobs")
    stage("Slurm starts, without the device cgroup")
    with cluster(gres_conf, constrain_devices=False) as it:
        seen["open jobs"] = all_of(it, OPEN_JOBS)
    return seen


def furnish() -> None:
    """Make what a node has that an unpacked image has not."""
    Path("/etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\n{USER}:x:5:60::/:/bin/sh\n")
    Path("/etc/group").write_text(f"root:x:0:\n{USER}:x:60:\n")
    Path("/etc/hosts").write_text(f"127.0.0.1 {socket.gethostname()}\n")
    for name in ("slurmctld", "slurmd", "slurmstepd"):
        Path(f"/usr/sbin/{name}").symlink_to(f"{name}-wlm")  # which Debian has alternatives do
    for name, target in {"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"}.items():
        Path(f"/dev/{name}").symlink_to(f"/proc/self/{target}")
    for name in ("pts", "shm"):
        Path(f"/dev/{name}").mkdir()
    output("ip", "address", "add", "10.0.0.1", "dev", "lo")  # getaddrinfo(3), AI_ADDRCONFIG
    slice_ = GROUPS / "system.slice"  # where slurmd has its jobs
    slice_.mkdir()
    for folder in (GROUPS, slice_):
        # Slurm 22.05 overlooks the last of a cgroup's controllers, which pids is then.
        (folder / "cgroup.subtree_control").write_text("+cpuset +pids")
    have_patience()
    hold_gpus(MINORS)


def have_patience() -> None:
    """Let curl wait longer than the scripts say: an emulated CPU is slow."""
    curl = Path("/usr/bin/curl")
    curl.rename("/usr/bin/curl.debian")
    curl.write_text('#!/bin/sh\nexec /usr/bin/curl.debian "$@" --max-time 60\n')
    curl.chmod(0o755)


@contextmanager
def cluster(gres_conf: str, *, constrain_devices: bool) -> Iterator[Slurm]:
    """Run Slurm on the whole machine."""
    scripts = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task_prolog"}
    setup = Setup(
        gpus=[f"{minor}" for minor in MINORS],
        task_plugin="task/affinity,task/cgroup",
        constrain_devices=constrain_devices,
        conf=[f"{name}={INSTALLED}/{script}.sh" for name, script in scripts.items()],
        topology="Sockets=2 CoresPerSocket=8 ThreadsPerCore=2",
        gres_conf=gres_conf,
        binds={
            RUN: "/run/affinityd",
            shutil.copytree(SCRIPTS, RUN / "scripts", dirs_exist_ok=True): INSTALLED,
        },
    )
    with slurm(setup, USER) as it:
        yield it


def all_of(it: Slurm, jobs: Mapping[str, Job]) -> dict[str, dict[str, str]]:
    return {
        name: {mode: look(it, job.words, mode) for mode in job.modes} for name, job in jobs.items()
    }


def look(it: Slurm, words: str, name: str, **env: str) -> str:
    """Return what the tasks of a job in a mode say."""
    return it.srun(*words.split(), "sh", "-c", LOOK, env={**mode(name), **env})


def asking(it: Slurm, job: Asking) -> dict[str, str]:
    """Return what the tasks of a job say that keep as many CPUs as they asked for."""
    env = {"AFFINITYD_CPUS": job.said} if job.said else {}
    return {
        name: it.srun(*job.words.split(), "sh", "-c", VERIFY, env={"AFFINITYD_MODE": name, **env})
        for name in job.modes
    }


def together(it: Slurm) -> list[str]:
    """Return what the tasks of two jobs say, all of which are there at once."""
    MEETING.mkdir()
    MEETING.chmod(0o777)
    words = ("-n2", "--gres=gpu:2", "-c4", "sh", "-c", LOOK_TOGETHER)
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda _: it.srun(*words, env=mode(UNIQUE)), range(2)))


def mode(name: str) -> dict[str, str]:
    """Return the environment of a job that has near CPUs alone, however few."""
    return {"AFFINITYD_MODE": name, "AFFINITYD_CPUS": "none"}
