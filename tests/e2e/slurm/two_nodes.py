"""A Slurm of two nodes on this machine, one with GPUs and one without, as its administrator has it.

Each node has an /etc/slurm and a /dev of its own, and a slurmd that can be restarted. What is run
on a node, by `run` or by the `ssh` of `site`, runs where its slurmd does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.slurm import rig
from tests.e2e.slurm.rig import MAJOR, NAMESPACE, SLURM_CONF, USER, Setup, Slurm
from tests.support.daemons import PATIENCE, eventually, running
from tests.support.paths import REPOSITORY
from tests.support.tiny import tiny_tree

GPU, CPU = "gpu1", "cpu1"

#: The rest of slurm.conf is the rig's, with a place for each slurmd.
HEAD = SLURM_CONF.partition("NodeName=")[0]
HEAD = HEAD.replace("/slurmd.", "/slurmd-%n.").replace("/spool", "/spool-%n")
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}{gres}"
    " State=UNKNOWN\n"
)
PARTITION = "PartitionName=all Nodes=ALL Default=YES State=UP\n"

#: Runs a command on a node: ssh -n NODE COMMAND...
SSH = """\
#!/bin/sh
[ "$1" != -n ] || shift
pid=$(cat "{folder}/$1/pid")
shift
exec nsenter --mount="/proc/$pid/ns/mnt" --wd=/ sh -c "$*" </dev/null
"""


@dataclass
class Site:
    """The cluster, as its administrator has it."""

    folder: Path  #: the controller's /etc/slurm, and below it each node's by its name
    cluster: Slurm
    ports: Sequence[int]  #: of the slurmd
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def sh(self, script: str) -> str:
        """Return what the administrator's shell prints, on the controller: status 0 is a must."""
        env = {
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "SLURM_CONF": f"{self.folder / 'slurm.conf'}",
        }
        return _printed("sh", "-ec", script, env=env)

    def run(self, node: str, script: str, checkout: Path = REPOSITORY) -> str:
        """Return what root's shell prints on a node, in a checkout: status 0 is a must."""
        return _printed(*self.on(node, script, checkout))

    def on(self, node: str, script: str, checkout: Path = REPOSITORY) -> Sequence[str]:
        """Return the command that has root's shell on a node run this."""
        enter = ("nsenter", f"--mount=/proc/{self.daemons[node].pid}/ns/mnt", f"--wd={checkout}")
        return (*enter, "sh", "-ec", script)

    def configure(self, lines: str) -> None:
        """Have these lines in slurm.conf, everywhere, beside what every node is."""
        text = (self.folder / "base.conf").read_text() + lines
        for folder in (self.folder, self.folder / GPU / "etc", self.folder / CPU / "etc"):
            (folder / "slurm.conf").write_text(text)

    def restart(self) -> None:
        """Restart slurmctld, then every slurmd."""
        self._stop("slurmctld")
        self._start_controller()
        for node in (GPU, CPU):
            self._stop(node)
            self._start_node(node)
        self._wait()

    def start(self) -> None:
        """Start a cluster that has had no job."""
        self._start_controller("-i", "-c")
        for node in (GPU, CPU):
            self._start_node(node)
        self._wait()

    def _start_controller(self, *flags: str) -> None:
        command = ("slurmctld", "-D", *flags, "-f", f"{self.folder / 'slurm.conf'}")
        self.daemons["slurmctld"] = rig._start(self.folder, *command)

    def _start_node(self, node: str) -> None:
        apart = ("unshare", "--mount", "--propagation=private", "sh", "-c")
        inside = (*apart, NAMESPACE.format(major=MAJOR), f"{self.folder / node}")
        slurmd = ("slurmd", "-D", "-N", node, "-f", "/etc/slurm/slurm.conf")
        self.daemons[node] = rig._start(self.folder, *inside, *slurmd)
        (self.folder / node / "pid").write_text(f"{self.daemons[node].pid}")

    def _wait(self) -> None:
        eventually(lambda: all(map(_listens, self.ports)), "every slurmd listens")
        eventually(lambda: self.states() == {"idle"}, f"the nodes are idle{self.cluster.logs()}")

    def resume(self, node: str) -> None:
        """Have a node that was drained take jobs."""
        self.sh(f"scontrol update NodeName={node} State=RESUME")
        eventually(lambda: self.state(node) == "idle none\n", f"{node} is idle")

    def stop(self) -> None:
        for name in reversed([*self.daemons]):
            self._stop(name)

    def _stop(self, name: str) -> None:
        daemon = self.daemons.pop(name)
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(PATIENCE)

    def states(self) -> set[str]:
        """Return the states of the nodes; none where slurmctld does not answer yet."""
        try:
            return set(self.cluster.run("sinfo", "-hN", "--format=%T").split())
        except AssertionError:
            return set()

    def state(self, node: str) -> str:
        return self.cluster.run("sinfo", "-hN", "-n", node, "--format=%T %E")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _printed(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=env, check=False, capture_output=True, text=True, timeout=4 * PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def site() -> Iterator[Site]:
    """Run the cluster, with a daemon on the node with GPUs and no script anywhere."""
    with ExitStack() as stack:
        # Not below pytest's folder: the path of a unix socket has room for 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="site-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        run = folder / "run"
        stack.enter_context(running(run, "--root", f"{tiny_tree(folder / 'machine')}"))
        ports = _write(folder, {GPU: {run: "/run/affinityd"}, CPU: {}})
        it = Site(folder, Slurm(folder, USER), ports, {"munged": rig._munge(folder)})
        stack.callback(it.stop)
        it.configure("")
        it.start()
        yield it


def _write(folder: Path, nodes: Mapping[str, Mapping[Path, str]]) -> list[int]:
    """Write what each machine has, but for slurm.conf. Return each slurmd's port.

    `nodes`: what else each sees, and where.
    """
    controller, *ports = rig._free_ports(1 + len(nodes))
    facts = {"host": socket.gethostname(), "cpus": os.cpu_count()}
    head = HEAD.format(
        **facts, folder=folder, setup=Setup(), ports=(controller, 0), types="gpu", lines="",
        tracking="proctrack/linuxproc",
    )  # fmt: skip
    gres = {GPU: " Gres=gpu:2", CPU: ""}
    lines = [
        NODE.format(**facts, name=name, port=port, gres=gres[name])
        for name, port in zip(nodes, ports, strict=True)
    ]
    (folder / "base.conf").write_text("".join([head, *lines, PARTITION]))
    for name, binds in nodes.items():
        etc = folder / name / "etc"
        etc.mkdir(parents=True)
        (etc / "gres.conf").write_text(f"NodeName={GPU} Name=gpu File=/dev/nvidia[0-1]\n")
        (etc / "cgroup.conf").touch()
        (folder / name / "minors").write_text("0\n1\n" if name == GPU else "")
        seen = {etc: "/etc/slurm", **binds}
        (folder / name / "binds").write_text("".join(f"{at} {to}\n" for at, to in seen.items()))
    (folder / "gres.conf").write_text((folder / GPU / "etc/gres.conf").read_text())
    (folder / "state").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(SSH.format(folder=folder))
    (folder / "bin/ssh").chmod(0o755)
    return ports
