"""What task_prolog.sh asks, by what Slurm and the device files tell it; no Slurm needs to run."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.e2e.slurm.alone import JOB, Node, beside, said
from tests.support.servers import http

NVIDIA = "nvidiactl nvidia0 nvidia1 nvidia-uvm dri/renderD128"
AMD = "kfd dri/renderD128 dri/renderD129 dri/card0"
ONE = {"CUDA_VISIBLE_DEVICES": "1"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "4,5", "SLURM_LOCALID": "1"}
ODD = {"CUDA_VISIBLE_DEVICES": "MIG-1a/2 &visible=3#\n4", "SLURM_NTASKS": "$(id)"}

#: By what it depends on: device files, variables, and what is said of the files.
ASKED: dict[str, tuple[str, Mapping[str, str], str | None]] = {
    "NVIDIA: the files that can be opened": (NVIDIA, ONE, "minor:0,minor:1"),
    "NVIDIA without one: another GPU's is nothing": ("nvidiactl dri/renderD128", ONE, None),
    "AMD: its variable, its files": (AMD, {"ROCR_VISIBLE_DEVICES": "1"}, "drm:128,drm:129"),
    "to the letter": ("", ODD, None),
    "a step": ("", {**ONE, **STEP, "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, None),
    "what was chosen": ("", {**ONE, "AFFINITYD_MODE": "even", "AFFINITYD_CPUS": "3"}, None),
}


def asked(devices: str, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the parameters of the first question, the variables in it, and the task's CPUs."""
    lines: list[str] = []

    def behave(connection: socket.socket, _over: threading.Event) -> None:
        lines.append(connection.recv(65536).decode().splitlines()[0])
        connection.sendall(http("404 Not Found", b"No such GPU: none\n"))

    with beside(behave) as folder:
        printed, cpus = said(Node(run=folder, devices=devices), env)
    assert printed == "export AFFINITYD_UNPINNED=No such GPU: none\n"
    (line,) = lines
    query = urlsplit(line.split()[1]).query
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    variables = dict(text.split("=", 1) for name, text in pairs if name == "env")
    return {name: text for name, text in pairs if name != "env"}, variables, cpus


@pytest.mark.parametrize("by", ASKED)
def test_the_question_has_the_variables_and_device_files_of_the_task(by: str) -> None:
    devices, env, granted = ASKED[by]
    stated, variables, cpus = asked(devices, env)
    files = {} if granted is None else {"granted": granted}
    assert stated == {"format": "shell", "cpuset": cpus, **files}
    assert {name: text for name, text in variables.items() if text} == {**JOB, **env}


@pytest.mark.parametrize(("kind", "masks"), [("mask_cpu:", "0x1,0x2"), ("cores", "")])
def test_masks_are_passed_on_where_slurm_chose_them(kind: str, masks: str) -> None:
    bound = {"SLURM_CPU_BIND_TYPE": kind, "SLURM_CPU_BIND_LIST": masks}
    _, variables, _ = asked("", {**ONE, **STEP, **bound})
    assert ("SLURM_CPU_BIND_LIST" in variables) == bool(masks)


@pytest.mark.parametrize(
    "env", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}]
)
def test_a_task_without_gpus_asks_nothing(env: Mapping[str, str]) -> None:
    def behave(_connection: socket.socket, _over: threading.Event) -> None:
        was_asked.set()

    was_asked = threading.Event()
    with beside(behave) as folder:
        assert said(Node(run=folder), env)[0] == ""
    assert not was_asked.is_set()


#: A folder takes the place of /usr/bin. What runs the script, and its sh, are in /run.
INSTEAD = """\
cp -L /bin/sh /usr/bin/env /usr/bin/setpriv /run
: >/run/started
chmod 666 /run/started
mount --bind {} /usr/bin
"""
LOOK = """\
while read -r name; do echo "started $name"; done </run/started
[ ! -e /run/affinityd ] || echo "left /run/affinityd"
"""
TELL = '#!/run/sh\necho "${0##*/}" >>/run/started\n'


@pytest.fixture(scope="module")
def telling() -> Iterator[Path]:
    """Make a folder of programs that say that they were started."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "tell").write_text(TELL)
        (folder / "tell").chmod(0o755)
        for path in Path("/usr/bin").iterdir():
            ours = path.name in {"sh", "env", "setpriv"}
            (folder / path.name).symlink_to(f"/run/{path.name}" if ours else "tell")
        yield folder


def without_gpus(telling: Path, script: str, env: Mapping[str, str], more: str = "") -> str:
    """Return what a script says on such a node, the programs that it starts, what it leaves."""
    more += INSTEAD.format(telling)
    done = Node(devices="", more=more, after=LOOK).run_script(script, {**JOB, **env})
    assert (done.status, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("env", [{}, {"SLURM_GPUS_ON_NODE": "0"}, {"AFFINITYD": "off"}], ids=str)
@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh", "task_prolog.sh"])
def test_on_a_node_without_gpus_a_script_says_nothing_and_starts_nothing(
    telling: Path, script: str, env: Mapping[str, str]
) -> None:
    assert without_gpus(telling, script, env) == ""


def test_gpus_of_the_submitting_shell_are_none_of_a_node_without(telling: Path) -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "AFFINITYD_CPULIST": "7"}
    env |= {"AFFINITYD_RDMA": "a:1,b:1", "UCCL_P2P_RDMA_DEV": "a,b", "NCCL_IB_HCA": "=c:1"}
    unset = "AFFINITYD_CPULIST", "AFFINITYD_RDMA", "UCCL_P2P_RDMA_DEV"
    printed = without_gpus(telling, "task_prolog.sh", env)
    assert printed.splitlines() == [f"unset {name}" for name in unset]


def test_an_epilog_starts_rm_where_there_is_a_note(telling: Path) -> None:
    printed = without_gpus(telling, "epilog.sh", {}, "mkdir -p /run/affinityd/jobs/1\n")
    assert printed == "started rm\nleft /run/affinityd\n"
