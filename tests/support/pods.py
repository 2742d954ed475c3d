"""A pod's container for tests of `run`, with device files and CPUs that this machine lacks.

Only what a node with GPUs has and this machine lacks is made up: the device files, AMD's vendor in
sysfs, and a kernel that accepts the mask of 256 CPUs. The scripts, and their requests, are real.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from affinityd.cpuset import CpuSet, format_list, parse_list
from tests.support.daemons import PATIENCE
from tests.support.tiny import affinityd
from tests.unit.request.test_devices import EIGHT

#: Stands for taskset(1) and the kernel: writes the mask into the status file of the process.
TASKSET = """#!/bin/sh
[ "$1" = -cp ] || exit 2
printf 'Cpus_allowed_list:\\t%s\\n' "$2" >"{proc}/$3/status"
echo "$2" >>"{folder}/pinned"
"""
#: Writes the first mask of the process into its status file, and becomes the script.
START = """
/bin/mkdir -p "$1/$$"
printf 'Cpus_allowed_list:\\t%s\\n' "$2" >"$1/$$/status"
shift 2
exec "$@"
"""

#: The node of most tests is a DGX A100: its CPUs, and the block of GPU 2, /dev/nvidia5.
ONLINE = EIGHT.online
GPU_2 = "16-23,144-151"
SHELLS = [["dash"], ["bash", "--posix"], ["busybox", "sh"]]


@dataclass(frozen=True)
class Told:
    environment: Mapping[str, str]
    lines: Sequence[str]  #: of stderr
    status: int

    @property
    def cpus(self) -> CpuSet | None:
        """The CPUs to which `run` pinned the command, or None if `run` did not pin it."""
        text = self.environment.get("AFFINITYD_CPULIST")
        return None if text is None else parse_list(text)


class Pod:
    """A folder that `affinityd init` has filled, and the container that uses it."""

    def __init__(self, folder: Path, socket: Path, said: Mapping[str, str] | None = None) -> None:
        """Prepare the pod, as an init container with these variables does."""
        self.folder = folder
        self.socket = socket
        self.to = folder / "affinity"
        key = frozenset((said or {}).items())
        shutil.copytree(_prepared(socket, socket.stat().st_mtime_ns, key), self.to)
        for place in ("dev/dri", "sys", "proc", "bin"):
            (folder / place).mkdir(parents=True)
        program = folder / "bin/taskset"
        program.write_text(TASKSET.format(proc=folder / "proc", folder=folder))
        program.chmod(0o755)
        script = (self.to / "run").read_text()
        places = f"dev={folder}/dev sys={folder}/sys proc={folder}/proc"
        script = script.replace("dev=/dev sys=/sys proc=/proc", places)
        # The script gets a path: some busybox shells run their own applet if given only a name.
        (self.to / "run").write_text(script.replace("taskset=taskset", f"taskset={program}"))

    def has(self, *devices: str) -> None:
        """Give the pod only these device files, such as nvidia0 or AMD's dri/renderD128."""
        for old in (self.folder / "dev").rglob("*[0-9]"):
            old.unlink()
        for name in devices:
            device = self.folder / "dev" / name
            device.parent.mkdir(exist_ok=True)
            device.touch()
            vendor = self.folder / f"sys/class/drm/{Path(name).name}/device/vendor"
            vendor.parent.mkdir(parents=True, exist_ok=True)
            vendor.write_text("0x1002\n")

    def run(
        self,
        *words: str,
        cpus: CpuSet,
        shell: Sequence[str] = ("sh",),
        path: str = "/usr/bin:/bin",
        **said: str,
    ) -> Told:
        """Run a command by `run`, on these CPUs, with these variables."""
        command = [*shell, str(self.to / "run"), *(words or ("env",))]
        environment = {"PATH": f"{self.folder}/bin:{path}", **said}
        done = subprocess.run(
            ["/bin/sh", "-c", START, "sh", str(self.folder / "proc"), format_list(cpus), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
        return Told(found, done.stderr.splitlines(), done.returncode)


@cache
def _prepared(socket: Path, _since: int, said: frozenset[tuple[str, str]]) -> Path:
    """Return the files of an init container, which are the same for all pods of a daemon."""
    folder = Path(tempfile.mkdtemp(prefix="affinity-"))
    atexit.register(shutil.rmtree, folder)
    done = affinityd("init", "--to", str(folder / "to"), "--socket", str(socket), env=dict(said))
    assert done.status == 0, done.stderr
    return folder / "to"


def unreachable(pod: Pod) -> dict[str, str]:
    return {"AFFINITYD_SOCKET": os.fspath(pod.folder / "nobody")}


def only(folder: Path, *programs: str) -> str:
    folder.mkdir()
    for name in programs:
        found = sys.executable if name == "python3" else shutil.which(name)
        (folder / name).symlink_to(found or f"{name} is not installed")
    return str(folder)
