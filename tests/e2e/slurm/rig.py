"""A real Slurm on this machine: munged, slurmctld and slurmd for one node with fake GPUs.

Nothing under /etc is touched, and no port is one that a real Slurm would take. A GPU's device file
is a character device that no driver serves: Slurm asks for no more.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.daemons import PATIENCE, eventually

NODE = "rig"
MAJOR = 240  #: of devices for local use, kernel Documentation/admin-guide/devices.txt
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")

SLURM_CONF = """\
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoAddrCache
MpiDefault=none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin={task_plugin}
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=all Nodes={node} Default=YES State=UP
"""


@dataclass(frozen=True)
class Slurm:
    """A cluster that runs."""

    folder: Path

    def srun(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a step prints, a task's lines together; it must succeed."""
        return self._output(["srun", "--label", *words], env)

    def sbatch(self, script: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a batch script prints; it must succeed."""
        path, out = self.folder / "script", self.folder / "out"
        path.write_text(f"#!/bin/sh\n{script}\n")
        self._output(["sbatch", "--wait", f"--output={out}", *words, str(path)], env)
        return out.read_text()

    def _output(self, command: Sequence[str], env: Mapping[str, str] | None) -> str:
        conf = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        environment = {"PATH": os.environ["PATH"], **conf, **(env or {})}
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            check=False,
            text=True,
            capture_output=True,
            timeout=4 * PATIENCE,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}{self.logs()}"
        return done.stdout + done.stderr

    def logs(self) -> str:
        """Return the ends of the daemons' logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "".join(f"\n{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in logs)


@contextmanager
def slurm(folder: Path, gpus: int, task_plugin: str = "task/none") -> Iterator[Slurm]:
    """Run a cluster of one node that has this machine's CPUs and so many GPUs."""
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    devices = [_device(folder, minor) for minor in range(gpus)]
    host = socket.gethostname()
    facts = {"host": host, "folder": folder, "ports": _free_ports(2), "node": NODE, "gpus": gpus}
    (folder / "slurm.conf").write_text(
        SLURM_CONF.format(**facts, cpus=os.cpu_count(), task_plugin=task_plugin)
    )
    (folder / "gres.conf").write_text("".join(f"Name=gpu File={file}\n" for file in devices))
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    daemons: list[subprocess.Popen[bytes]] = []
    cluster = Slurm(folder)
    try:
        daemons.append(_munge(folder))
        conf = str(folder / "slurm.conf")
        daemons.append(_start(folder, "slurmctld", "-D", "-i", "-c", "-f", conf))
        daemons.append(_start(folder, "slurmd", "-D", "-c", "-N", NODE, "-f", conf))
        eventually(lambda: _is_idle(cluster), f"the node is idle{cluster.logs()}")
        yield cluster
    finally:
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def missing() -> list[str]:
    """Return the programs that are not installed."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    key, path = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    files = {"key-file": key, "socket": path, "pid-file": folder / "munge.pid"}
    files |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
    options = (f"--{name}={file}" for name, file in files.items())
    process = _start(folder, "munged", "--foreground", "--force", *options)
    eventually(path.exists, "munged listens")
    return process


def _start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / f"{command[0]}.out.log").open("w") as log:
        environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "slurm.conf")}
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


def _is_idle(cluster: Slurm) -> bool:
    try:
        return "idle" in cluster._output(["sinfo", "--noheader", "--format=%T"], None)
    except AssertionError:  # slurmctld does not listen yet
        return False


def _device(folder: Path, minor: int) -> Path:
    path = folder / f"gpu{minor}"
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(MAJOR, minor))
    return path


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in sockets]
    for server in sockets:
        server.close()
    return ports
