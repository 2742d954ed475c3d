"""A Slurm of two nodes on this machine, one with GPUs and one without, as its administrator has it.

Each node has an /etc/slurm and a /dev of its own, and a slurmd that can be restarted. What is run
on a node, by `run` or by the `ssh` of `site`, runs where its slurmd does.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.slurm import rig
from tests.e2e.slurm.rig import SLURM_CONF, USER, Setup, Slurm
from tests.support.daemons import eventually, running
from tests.support.paths import REPOSITORY
from tests.support.tiny import tiny_tree

GPU, CPU = NODES = ("gpu1", "cpu1")

#: The rest of slurm.conf is the rig's, with a place for each slurmd.
HEAD = SLURM_CONF.partition("NodeName=")[0]
HEAD = HEAD.replace("/slurmd.", "/slurmd-%n.").replace("/spool", "/spool-%n")
NODE = (
    "NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus}{gres}"
    " State=UNKNOWN\n"
)
PARTITION = "PartitionName=all Nodes=ALL Default=YES State=UP\n"
GRES_CONF = f"NodeName={GPU} Name=gpu File=/dev/nvidia[0-1]\n"

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
        path = {"PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return rig.printed(self.folder, "sh", "-ec", script, env=path)

    def run(self, node: str, script: str) -> str:
        """Return what root's shell prints on a node, in a checkout: status 0 is a must."""
        return rig.printed(self.folder, *self.on(node, script))

    def on(self, node: str, script: str) -> Sequence[str]:
        """Return the command that has root's shell on a node run this."""
        enter = ("nsenter", f"--mount=/proc/{self.daemons[node].pid}/ns/mnt", f"--wd={REPOSITORY}")
        return (*enter, "sh", "-ec", script)

    def configure(self, lines: str) -> None:
        """Have these lines in slurm.conf, everywhere, beside what every node is."""
        text = (self.folder / "base.conf").read_text() + lines
        for folder in (self.folder, *(self.folder / node / "etc" for node in NODES)):
            (folder / "slurm.conf").write_text(text)

    def start(self, *flags: str) -> None:
        """Start slurmctld, then every slurmd; `-c`: as if there had been no job."""
        controller = ("slurmctld", "-D", *flags, "-f", f"{self.folder / 'slurm.conf'}")
        self.daemons["slurmctld"] = rig.start(self.folder, *controller)
        for node in NODES:
            slurmd = ("slurmd", "-D", "-N", node, "-f", "/etc/slurm/slurm.conf")
            self.daemons[node] = rig.start(self.folder, *rig.apart(self.folder / node), *slurmd)
            (self.folder / node / "pid").write_text(f"{self.daemons[node].pid}")
        eventually(lambda: all(map(_listens, self.ports)), "every slurmd listens")
        eventually(lambda: self.states() == {"idle"}, f"they are idle{rig.logs(self.folder)}")

    def restart(self) -> None:
        for name in ("slurmctld", *NODES):
            rig.stop(self.daemons.pop(name))
        self.start()

    def resume(self, node: str) -> None:
        """Have a node that was drained take jobs."""
        self.sh(f"scontrol update NodeName={node} State=RESUME")
        eventually(lambda: self.state(node) == "idle none\n", f"{node} is idle")

    def stop(self) -> None:
        for daemon in reversed(self.daemons.values()):
            rig.stop(daemon)

    def states(self) -> set[str]:
        """Return the states of the nodes; none where slurmctld does not answer yet."""
        return set(self.cluster.state().split())

    def state(self, node: str) -> str:
        return self.cluster.run("sinfo", "-hN", "-n", node, "--format=%T %E")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


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
        it = Site(folder, Slurm(folder, USER), ports, {"munged": rig.munge(folder)})
        stack.callback(it.stop)
        it.configure("")
        it.start("-i", "-c")
        yield it


def _write(folder: Path, seen: Mapping[str, Mapping[Path, str]]) -> list[int]:
    """Write what each machine has, but for slurm.conf. Return each slurmd's port.

    `seen`: what each node sees besides, and where.
    """
    controller, *ports = rig.free_ports(1 + len(NODES))
    facts = {"host": socket.gethostname(), "cpus": os.cpu_count()}
    head = HEAD.format(
        **facts, folder=folder, setup=Setup(), ports=(controller, 0), types="gpu", lines="",
        tracking="proctrack/linuxproc",
    )  # fmt: skip
    gres = {GPU: " Gres=gpu:2", CPU: ""}
    lines = [
        NODE.format(**facts, name=name, port=port, gres=gres[name])
        for name, port in zip(NODES, ports, strict=True)
    ]
    (folder / "base.conf").write_text("".join([head, *lines, PARTITION]))
    for name in NODES:
        etc = folder / name / "etc"
        etc.mkdir(parents=True)
        (etc / "gres.conf").write_text(GRES_CONF)
        (etc / "cgroup.conf").touch()
        minors = ("0", "1") if name == GPU else ()
        rig.write_lists(folder / name, minors, {etc: "/etc/slurm", **seen[name]})
    (folder / "gres.conf").write_text(GRES_CONF)
    (folder / "state").mkdir()
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(SSH.format(folder=folder))
    (folder / "bin/ssh").chmod(0o755)
    return ports
