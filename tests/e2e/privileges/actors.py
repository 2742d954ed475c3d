"""Real processes of another user: some use GPUs in cgroups of jobs, and one asks for plans."""

import json
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.children import program, sleeping
from tests.support.cpusets import cgroup, pod_parts, step_parts
from tests.support.paths import open_folder
from tests.support.tiny import BOTH, CPUS

USER = 1234
JOB = 4711
POD = "0b7de3f1-51aa-9d02-4c1e-8a1f0c3ea007"

#: Reads the path of a socket from stdin, asks there for a plan, and prints the answer.
ASKS = """
import http.client, os, socket, sys
os.setgroups([]); os.setgid(1234); os.setuid(1234)
print("ready", flush=True)
for path in sys.stdin:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(path.strip())
        connection.request("GET", "/plan?gpus=0000:e2:00.0&mode=node")
        print(connection.getresponse().read().decode().replace("\\n", " "), flush=True)
    except OSError as error:
        print("{}", flush=True)
"""
#: Starts a new program: if a process only changes its user, its /proc files stay root's, proc(5).
AS_USER = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


@dataclass
class Actors:
    job: int  #: a pid in a step of Slurm, on NVIDIA's GPU
    pod: int  #: a pid in a pod, on NVIDIA's GPU
    of_amd: int
    of_npu: int
    asker: subprocess.Popen[str]
    dev: Path  #: the folder of the device files

    @property
    def pids(self) -> list[int]:
        return [self.asker.pid, self.job, self.pod, self.of_amd, self.of_npu]

    def rest(self) -> None:
        for pid in self.pids[1:]:
            os.sched_setaffinity(pid, set(CPUS))

    def plan(self, path: Path) -> Any:  # noqa: ANN401 - a document
        assert self.asker.stdin is not None
        assert self.asker.stdout is not None
        self.asker.stdin.write(f"{path}\n")
        self.asker.stdin.flush()
        return json.loads(self.asker.stdout.readline())


@contextmanager
def playing() -> Iterator[Actors]:
    """Start the actors. The NPU's device file has the device number of /dev/full, mem(4)."""
    with open_folder() as dev, ExitStack() as stack:
        enter = stack.enter_context
        os.mknod(dev / "davinci0", stat.S_IFCHR | 0o666, os.makedev(1, 7))
        os.mknod(dev / "nvidiactl", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        (dev / "nothing").touch()
        for file in dev.iterdir():
            file.chmod(0o666)
        step = enter(cgroup(*step_parts(JOB), cpus=BOTH))
        pod = enter(cgroup(*pod_parts(POD), cpus=BOTH))

        def started(group: Path, file: str = "nothing") -> int:
            before = (*AS_USER, "sh", "-c", 'exec "$@" 3<"$0"', f"{dev / file}")
            process = enter(sleeping(None, before))
            (group / "cgroup.procs").write_text(f"{process.pid}")
            return process.pid

        job, of_amd, of_npu = started(step), started(step), started(step, "davinci0")
        in_pod = started(pod)
        asker = enter(program(ASKS))
        (step / "cgroup.procs").write_text(f"{asker.pid}")
        # The step has a process named slurmstepd, as in a job that has not ended.
        shutil.copy(shutil.which("sleep") or "", dev / "slurmstepd")
        keeper = enter(subprocess.Popen([dev / "slurmstepd", "600"]))
        stack.callback(keeper.kill)
        (step / "cgroup.procs").write_text(f"{keeper.pid}")
        yield Actors(job, in_pod, of_amd, of_npu, asker, dev)
