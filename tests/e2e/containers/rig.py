"""Real containers on this machine: jobs that run to their end, and the daemon of the built image.

A container has only its own loopback network, unless an option says otherwise.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.containers import images
from tests.e2e.containers.podman import attempt, environment, podman
from tests.support.daemons import COMPLAINTS, PATIENCE, Daemon, eventually, is_ready
from tests.support.tiny import Ended, ran

USER = 65532  #: the user of the image's daemon
UNPRIVILEGED = ("--read-only", "--cap-drop=all")  #: options for the chart's privileges
SOCKETS = "/run/affinityd"  #: the folder of the daemon's socket, in the container
ROOT = "/machine"  #: the path of a captured machine, in the container
PID = "pid"  #: the file beside a container's log that has the pid of the first process


_numbers = itertools.count()


@dataclass
class Container(Daemon):
    """A running container; if it has a socket, it is a daemon that can be asked."""

    name: str

    @property
    def pid(self) -> int:
        """The pid of the container's first process in this machine's pid namespace."""
        return int(self.log.with_name(PID).read_text())

    def exec(self, *command: str) -> Ended:
        return attempt("exec", self.name, *command)

    def signal(self, number: int) -> None:
        """Signal the container's first process, as a runtime does."""
        os.kill(self.pid, number)


def container(image: str, *command: str, options: Sequence[str] = ()) -> Ended:
    name = unique_name()
    try:
        return attempt(*_run(name, options), image, *command)
    except subprocess.TimeoutExpired:
        _remove(name)
        raise


@contextmanager
def running(
    folder: Path, image: str, *command: str, options: Sequence[str] = ()
) -> Iterator[Container]:
    """Run a container until the end of the block; its logs and socket are in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name, log = unique_name(), folder / "log"
    pid = f"--pidfile={folder / PID}"
    with log.open("w") as out, log.with_name(COMPLAINTS).open("w") as err:
        process = subprocess.Popen(
            ["podman", *_run(name, options), pid, image, *command],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            text=True,
        )
    started = Container(process, folder / "run/affinityd.sock", log, name)
    try:
        eventually(lambda: _has_started(started), f"{image} has started")
        yield started
    finally:
        _remove(name)
        process.wait(PATIENCE)


@contextmanager
def daemon(
    folder: Path, *arguments: str, root: Path | None = None, options: Sequence[str] = ()
) -> Iterator[Container]:
    """Run the image's `affinityd serve` in this machine's pid namespace until the block ends.

    `root` has the files of a captured machine. The socket's folder is FOLDER/run on this
    machine; `mount(daemon)` shows that folder to clients.
    """
    sockets = folder / "run"
    sockets.mkdir(parents=True, exist_ok=True)
    os.chown(sockets, USER, USER)
    volumes = [f"--volume={sockets}:{SOCKETS}", *([f"--volume={root}:{ROOT}:ro"] if root else [])]
    command = ["serve", *arguments, *(["--root", ROOT] if root else [])]
    here = ["--pid=host", *UNPRIVILEGED, *volumes, *options]
    with running(folder, images.affinityd(), *command, options=here) as started:
        eventually(lambda: is_ready(started), "the daemon is ready")
        eventually(started.socket.with_name("node.json").exists, "the node file is there")
        yield started


def mount(asked: Container) -> list[str]:
    """Return the options by which a container sees a daemon's socket, as a pod does by hostPath."""
    return [f"--volume={asked.socket.parent}:{SOCKETS}:ro"]


def curl(pid: int, url: str) -> Ended:
    asks = ("curl", "--silent", "--fail-with-body", "--max-time", "60", url)
    return ran("nsenter", f"--net=/proc/{pid}/ns/net", *asks)


def machine(tree: Path) -> list[str]:
    """Return the options by which a container sees a machine whose files `tests.machines` wrote.

    The files lie over the kernel's in /sys: to the daemon the machine is live, not replayed.
    """
    seen = [folder for folder in ("devices", "bus", "class") if (tree / "sys" / folder).exists()]
    return [f"--volume={tree}/sys/{folder}:/sys/{folder}:ro" for folder in seen]


def unique_name() -> str:
    return f"affinityd-test-{os.getpid()}-{next(_numbers)}"


def _run(name: str, options: Sequence[str]) -> list[str]:
    apart = not any(option.startswith(("--network", "--net=", "--pod")) for option in options)
    network = ["--network=none"] if apart else []
    return ["run", "--rm", f"--name={name}", "--pull=never", *network, *options]


def _remove(name: str) -> None:
    podman("rm", "--force", "--ignore", "--time=0", name)


def _has_started(started: Container) -> bool:
    """Whether the container's first process is no longer runc; podman reports that much later."""
    if started.process.poll() is not None:
        return True  # the process has even ended; the caller's block judges that
    try:
        words = Path(f"/proc/{started.pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):  # the pid file is missing, or empty
        return False
    return words[0] != b"" and b"runc" not in words[0]
