"""A real Slurm on this machine: munged, slurmctld and a slurmd for each node, with fake GPUs.

Nothing under /etc or /dev is changed, and no port of a real Slurm is used: each slurmd and its
tasks run in a mount namespace. The namespace's /dev has a file for each GPU, without a driver:
Slurm needs only the file.
"""

import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.support.daemons import PATIENCE, eventually, free_port
from tests.support.paths import REPOSITORY, open_folder

MAJOR = 240  #: of devices for local use, kernel Documentation/admin-guide/devices.txt
USER = "games"  #: a user other than root, whom every Debian has

NSENTER = "/usr/bin/nsenter"  #: the full path, since a user's PATH may lack it

HOST = "22.05"  #: the release in Debian 12, on which the tests run
SUITES = {"24.11": "trixie", "26.05": "forky"}
NIGHTLY = (HOST, "24.11")  #: releases that are not tried for every change

HERE = Path(__file__).parent
SLURM_CONF = (HERE / "slurm.conf.in").read_text()
CGROUP_CONF = """\
CgroupPlugin=autodetect
CgroupMountpoint=/sys/fs/cgroup
IgnoreSystemd=yes
ConstrainCores=yes
ConstrainDevices={devices}
"""

NAMESPACE = (HERE / "namespace.sh").read_text()

#: Runs a program in slurmd's namespace, on the hardware that slurmd sees.
INSIDE = """\
#!/bin/sh
IFS='
'
seen=$(tr '\\0' '\\n' </proc/{pid}/environ | grep ^HWLOC_)
exec env $seen nsenter --target {pid} --mount --wdns=/ {program} "$@"
"""


@dataclass(frozen=True)
class Setup:
    gpus: Sequence[str] = ("0", "1")  #: minors, in Slurm's order; `big:3` has the type big
    task_plugin: str = "task/none"
    constrain_devices: bool = False
    conf: Sequence[str] = ()  #: more lines of slurm.conf
    nodes: int = 1  #: all alike, each on all CPUs of this machine
    topology: str = ""  #: the layout of a node's CPUs, like Sockets=2 …; empty: all CPUs are alike
    hwloc: str = ""  #: the hardware that slurmd sees, in the form of HWLOC_SYNTHETIC, hwloc(7)
    state: str = "idle"  #: the state that the node must reach
    gres_conf: str | None = None  #: text of gres.conf; None: a line for each GPU, without Cores=
    binds: Mapping[Path, str] = field(default_factory=dict)  #: file → path on the node
    release: str = HOST  #: of Slurm
    root: Path | None = None  #: the release's root; None: it is made, and kept


@dataclass(frozen=True)
class Slurm:
    folder: Path
    user: str | None = None  #: None: root
    inside: Sequence[str] = (NSENTER,)  #: words that run a command in this Slurm's namespaces

    def command(self, *words: str) -> list[str]:
        """Return the words that run one of this Slurm's commands as the user."""
        if self.user is None:
            return [*self.inside, *words]
        who = pwd.getpwnam(self.user)  # Debian's numbers are the same in every release
        return [*self.inside, f"--setuid={who.pw_uid}", f"--setgid={who.pw_gid}", *words]

    def srun(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        return self.run("srun", "--label", *words, env=env)

    def sbatch(self, script: str, *words: str, env: Mapping[str, str] | None = None) -> str:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o777)
            path, out = Path(folder, "script"), Path(folder, "out")
            path.write_text(f"#!/bin/sh\n{script}\n")
            number = self.run("sbatch", "--parsable", f"--output={out}", *words, f"{path}", env=env)
            eventually(lambda: self._has_ended(number.strip()), f"job {number} ends")
            return out.read_text()

    def _has_ended(self, job: str) -> bool:
        """Whether a job has ended successfully; sbatch's own --wait checks every ten seconds."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        assert not re.search("JobState=(FAILED|CANCELLED|TIMEOUT|NODE_FAIL)", shown), shown
        return "JobState=COMPLETED" in shown

    def run(self, *command: str, env: Mapping[str, str] | None = None) -> str:
        return printed(self.folder, *self.command(*command), env=env)

    @contextmanager
    def job(self, tasks: int, *words: str) -> Iterator[list[int]]:
        """Run a job of several tasks until the block ends; yield their pids by task number."""
        srun = ["srun", "--label", f"--ntasks={tasks}", *words]
        srun += ["/bin/sh", "-c", "echo $$; exec sleep 600"]
        with subprocess.Popen(
            self.command(*srun),
            env=environment(self.folder),
            cwd="/",
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            pids = dict(process.stdout.readline().split(":") for _ in range(tasks))
            try:
                yield [int(pids[number]) for number in sorted(pids)]
            finally:
                process.terminate()
                process.communicate()

    @property
    def node(self) -> str:
        return _node(self.folder)

    @property
    def slurmd(self) -> int:
        """The pid of the node's slurmd."""
        return int((self.folder / f"{self.node}.pid").read_text())

    def on_node(self, script: str) -> Sequence[str]:
        """Return the command that runs a script as root in the mount namespace of slurmd."""
        return ("nsenter", f"--target={self.slurmd}", "--mount", "--wdns=/", "sh", "-ec", script)

    def programs(self) -> Path:
        """Return a folder of programs; they run in slurmd's namespace, on slurmd's devices."""
        folder = self.folder / "programs"
        folder.mkdir(exist_ok=True)
        for program in ("/usr/sbin/slurmd", "/usr/bin/scontrol"):
            script = folder / Path(program).name
            script.write_text(INSIDE.format(pid=self.slurmd, program=program))
            script.chmod(0o755)
        return folder

    def state(self) -> str:
        """Return the states of the nodes; nothing while slurmctld does not listen."""
        with suppress(AssertionError):
            return self.run("sinfo", "-hN", "--format=%T")
        return ""


def environment(folder: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "SLURM_CONF": f"{folder / 'slurm.conf'}"}


def printed(folder: Path, *command: str, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a cluster's command, which must succeed."""
    env = {**environment(folder), **(env or {})}
    done = subprocess.run(
        command, env=env, cwd="/", check=False, text=True, capture_output=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}{logs(folder)}"
    return done.stdout + done.stderr


def logs(folder: Path) -> str:
    paths = sorted(folder.glob("*.log"))
    return "".join(f"\n{log.name}:\n{log.read_text(errors='replace')[-1500:]}" for log in paths)


@contextmanager
def slurm(setup: Setup, user: str | None = None) -> Iterator[Slurm]:
    """Run a cluster for jobs of a user, by default of one node, with this machine's CPUs."""
    with (
        open_folder("rig-") as folder,
        entered(setup, folder) as inside,
    ):
        _configure(folder, setup)
        daemons: list[subprocess.Popen[bytes]] = []
        cluster = Slurm(folder, user, inside)
        try:
            daemons.append(_munge(folder, inside))
            conf = str(folder / "slurm.conf")
            daemons.append(_start(folder, *inside, "slurmctld", "-D", "-i", "-c", "-f", conf))
            for node in _nodes(folder, setup):
                apart = [*inside, "unshare", "--mount", "--propagation=private", "sh", "-c"]
                apart += [NAMESPACE, "sh", f"{folder / node}", f"{MAJOR}"]
                seen = [f"HWLOC_SYNTHETIC={setup.hwloc}"] if setup.hwloc else []
                slurmd = ["env", *seen, "slurmd", "-D", "-c", "-N", node, "-f", conf]
                daemons.append(_start(folder, *apart, *slurmd))
            eventually(
                lambda: cluster.state().count(setup.state) == setup.nodes,
                f"{setup.state}{logs(folder)}",
            )
            yield cluster
        finally:
            for daemon in reversed(daemons):
                _stop(daemon)
            for node in _nodes(folder, setup):
                _remove_cgroups(node)


def _stop(daemon: subprocess.Popen[bytes]) -> None:
    """Stop a daemon; slurmd 24.11 sometimes spins instead of stopping, which is no test's fault."""
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait(PATIENCE)


def _node(folder: Path) -> str:
    """Return the first node's name, unique among clusters, since it names cgroups."""
    return f"n{folder.name.encode().hex()}"


def _nodes(folder: Path, setup: Setup) -> list[str]:
    return [f"{_node(folder)}{'x' * number}" for number in range(setup.nodes)]


def _remove_cgroups(node: str) -> None:
    """Remove slurmd's cgroups in each hierarchy, v1 or v2, the innermost first."""
    groups = Path("/sys/fs/cgroup")
    for top in (*groups.glob(f"*/slurm_{node}"), *groups.glob(f"*/{node}_slurmstepd.scope")):
        for folder, _, _ in os.walk(top, topdown=False):
            with suppress(OSError):
                Path(folder).rmdir()


def _configure(folder: Path, setup: Setup) -> None:
    (folder / "state").mkdir()
    gpus = [gpu.rpartition(":") for gpu in setup.gpus]
    gres = Counter(f"gpu:{kind}" if kind else "gpu" for kind, _, _ in gpus)
    has = " Gres=" + ",".join(f"{it}:{n}" for it, n in gres.items()) if gres else ""
    conf = SLURM_CONF.format(
        host=socket.gethostname(),
        folder=folder,
        setup=setup,
        nodes="\n".join(
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={free_port()} {setup.topology or f'CPUs={os.cpu_count()}'}{has} State=UNKNOWN"
            for node in _nodes(folder, setup)
        ),
        port=free_port(),
        lines="\n".join(setup.conf),
        tracking="proctrack/cgroup" if "cgroup" in setup.task_plugin else "proctrack/linuxproc",
    )
    typed = [(f"Type={kind}" if kind else "", minor) for kind, _, minor in gpus]
    lines = [f"Name=gpu {kind} File=/dev/nvidia{minor}\n" for kind, minor in typed]
    (folder / "slurm.conf").write_text(conf)
    constrains = "yes" if setup.constrain_devices else "no"
    (folder / "cgroup.conf").write_text(CGROUP_CONF.format(devices=constrains))
    gres_conf = "".join(lines) if setup.gres_conf is None else setup.gres_conf
    (folder / "gres.conf").write_text(gres_conf)
    for node in _nodes(folder, setup):
        (folder / node).mkdir()
        (folder / node / "minors").write_text("".join(f"{minor}\n" for _, minor in typed))
        binds = (f"{source} {target}\n" for source, target in setup.binds.items())
        (folder / node / "binds").write_text("".join(binds))


def _munge(folder: Path, inside: Sequence[str]) -> subprocess.Popen[bytes]:
    key, path = folder / "munge.key", folder / "munge.socket"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    files = {"key-file": key, "socket": path, "pid-file": folder / "munge.pid"}
    files |= {"log-file": folder / "munge.log", "seed-file": folder / "munge.seed"}
    options = (f"--{name}={file}" for name, file in files.items())
    process = _start(folder, *inside, "munged", "--foreground", "--force", *options)
    eventually(path.exists, "munged listens")
    return process


def _start(folder: Path, *command: str) -> subprocess.Popen[bytes]:
    with (folder / "out.log").open("a") as log:
        return subprocess.Popen(command, env=environment(folder), stdout=log, stderr=log)


# Another release of Slurm is in a root of its own, made once by mmdebstrap and kept in the user's
# cache, named after its recipe. Each cluster writes to layers of its own over that root.


PACKAGES = (
    *("slurmctld", "slurmd", "slurm-client", "munge", "curl", "mount", "procps"),
    *("busybox-static", "python3-minimal", "libpython3-stdlib"),
)
UNREAD = ("doc", "info", "locale", "man")  #: folders of /usr/share

LAYERED = (HERE / "layered.sh").read_text()


@contextmanager
def entered(setup: Setup, folder: Path) -> Iterator[Sequence[str]]:
    """Yield the prefix of a command in a release of Slurm; the folder is for the root's layers.

    The last words are options of nsenter: root can add --setuid and --setgid.
    """
    if setup.release == HOST:
        yield (NSENTER,)
        return
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", LAYERED, "sh"]
    places = (folder, setup.root or root_of(setup.release), REPOSITORY)
    with subprocess.Popen([*command, *places], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"\n", f"no root of Slurm {setup.release}"
            yield (NSENTER, f"--target={holder.pid}", "--mount", "--wdns=/")
        finally:
            holder.kill()


@cache
def root_of(release: str) -> Path:
    """Return the root of a release; the first caller makes it while others wait."""
    suite = SUITES[release]
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in UNREAD]
    options += ["--aptopt=Acquire::Check-Valid-Until false"]  # a mirror may be behind
    recipe = ["mmdebstrap", "--quiet", "--variant=essential", *options]
    recipe += [f"--include={','.join(PACKAGES)}", suite]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-slurm"
    folder = cache / f"{suite}-{hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            _make(folder, recipe, release)
    return folder


def _make(folder: Path, recipe: list[str], release: str) -> None:
    half = folder.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    # The mirror of this machine's apt; mmdebstrap also has a default.
    asks = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian", "Label: Debian"]
    mirrors = subprocess.check_output(asks, text=True).split()[:1]
    done = subprocess.run(
        [*recipe, half, *mirrors], capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, f"{shlex.join(recipe)}: {done.stderr}"
    version = subprocess.check_output(["chroot", half, "slurmd", "-V"], text=True)
    assert f" {release}." in version, f"{recipe[-1]} has {version}: change SUITES"
    half.rename(folder)  # whole or not at all
