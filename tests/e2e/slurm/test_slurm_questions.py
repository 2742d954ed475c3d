"""What task_prolog.sh asks, by what Slurm and the device files tell it; no Slurm needs to run.

And what it makes of an answer in each sh that a node may have.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.e2e.pods.test_pod_asking import FUNCTIONS
from tests.e2e.slurm.bare import BARE_DEV
from tests.e2e.slurm.node import SCRIPTS
from tests.support.servers import answering, http, serving

#: A /dev with these files, then the script.
IN_A_DEV = f"""\
{BARE_DEV}mkdir /dev/dri
for device in $1; do mknod -m 666 "/dev/$device" c 240 0; done
exec "$2"
"""
TASK = {"SLURM_JOB_ID": "1", "SLURM_TASK_PID": f"{os.getpid()}"}
NVIDIA = "nvidiactl nvidia0 nvidia1 nvidia-uvm dri/renderD128"
AMD = "kfd dri/renderD128 dri/renderD129 dri/card0"
ONE = {"CUDA_VISIBLE_DEVICES": "1"}
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "4,5", "SLURM_LOCALID": "1"}


def asked(devices: str, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the parameters of the first question, and the variables; it must be the only one."""
    lines: list[str] = []

    def behave(connection: socket.socket, _over: threading.Event) -> None:
        lines.append(connection.recv(65536).decode().splitlines()[0])
        connection.sendall(http("404 Not Found", b"No such GPU: none\n"))

    # Not below pytest's folder, which may be in the /dev that the script does not see.
    with TemporaryDirectory() as folder, serving(Path(folder, "socket"), behave) as path:
        done = subprocess.run(
            [
                "unshare",
                "--mount",
                "sh",
                "-ec",
                IN_A_DEV,
                "sh",
                devices,
                SCRIPTS / "task_prolog.sh",
            ],
            env={**TASK, "AFFINITYD_SOCKET": f"{path}", **env},
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    assert done.stdout in {"", "export AFFINITYD_UNPINNED=No such GPU: none\n"}
    (line,) = lines
    query = urlsplit(line.split()[1]).query
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    environ = dict(text.split("=", 1) for name, text in pairs if name == "env")
    return {name: text for name, text in pairs if name != "env"}, environ


def mask() -> str:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))


@pytest.mark.parametrize(
    ("devices", "env", "granted"),
    [
        pytest.param(
            NVIDIA,
            {"CUDA_VISIBLE_DEVICES": "0"},
            "minor:0,minor:1",
            id="NVIDIA: the device files that can be opened",
        ),
        pytest.param(
            "nvidiactl dri/renderD128",
            {"CUDA_VISIBLE_DEVICES": "0"},
            None,
            id="NVIDIA without a GPU's file: another GPU's counts for nothing",
        ),
        pytest.param(
            AMD, {"ROCR_VISIBLE_DEVICES": "1"}, "drm:128,drm:129", id="AMD: its variable and files"
        ),
        pytest.param(
            "",
            {"CUDA_VISIBLE_DEVICES": "MIG-1a/2 &visible=3#\n4", "SLURM_NTASKS": "$(id)"},
            None,
            id="whatever variables say, to the letter",
        ),
        pytest.param("", {**ONE, **STEP, "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, None, id="a step"),
        pytest.param(
            "", {**ONE, "AFFINITYD_MODE": "even", "AFFINITYD_CPUS": "3"}, None, id="chosen"
        ),
    ],
)
def test_the_question_has_the_variables_and_device_files_of_the_task(
    devices: str, env: Mapping[str, str], granted: str | None
) -> None:
    files = {} if granted is None else {"granted": granted}
    stated, environ = asked(devices, env)
    assert stated == {"format": "shell", "cpuset": mask(), **files}
    assert {name: text for name, text in environ.items() if text} == {"SLURM_JOB_ID": "1", **env}


@pytest.mark.parametrize(
    ("bound", "passed"),
    [
        ({"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1,0x2"}, True),
        ({"SLURM_CPU_BIND_TYPE": "cores", "SLURM_CPU_BIND_LIST": ""}, False),
    ],
)
def test_masks_are_passed_on_where_slurm_chose_them(bound: dict[str, str], *, passed: bool) -> None:
    _, environ = asked("", {**ONE, **STEP, **bound})
    assert ("SLURM_CPU_BIND_LIST" in environ) == passed


#: A node without GPUs, where a folder takes the place of /usr/bin. Its sh is at /run.
NO_GPUS = f"""\
{BARE_DEV}mount -t tmpfs tmpfs /run
cp -L /bin/sh /run/sh
[ -z "$3" ] || mkdir -p "$3"
mount --bind "$1" /usr/bin
"$2"
[ ! -e /run/started ] || while read -r name; do echo "started $name"; done </run/started
[ ! -e /run/affinityd ] || echo "left /run/affinityd"
"""
TELL = '#!/run/sh\necho "${0##*/}" >>/run/started\n'


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh", "task_prolog.sh"])
@pytest.mark.parametrize(
    "env",
    [
        pytest.param({}, id="none that Slurm names"),
        pytest.param({"SLURM_GPUS_ON_NODE": "0"}, id="none on this node"),
        pytest.param({"AFFINITYD": "off"}, id="off"),
    ],
)
def test_on_a_node_without_gpus_a_script_says_nothing_and_starts_nothing(
    script: str, env: Mapping[str, str]
) -> None:
    assert run_without_gpus(script, env) == ""


def test_gpus_of_the_submitting_shell_are_none_of_a_node_without() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "AFFINITYD_CPULIST": "7"}
    assert run_without_gpus("task_prolog.sh", env) == "unset AFFINITYD_CPULIST\n"


def test_an_epilog_starts_rm_where_there_is_a_note() -> None:
    said = run_without_gpus("epilog.sh", {}, folder="/run/affinityd/jobs/1")
    assert said == "started rm\nleft /run/affinityd\n"


def run_without_gpus(script: str, env: Mapping[str, str], folder: str = "") -> str:
    """Return what a script says on such a node, the programs that it starts, what it leaves."""
    with TemporaryDirectory() as name:
        for program in Path("/usr/bin").iterdir():
            Path(name, program.name).symlink_to("/run/sh" if program.name == "sh" else "tell")
        Path(name, "tell").unlink(missing_ok=True)
        Path(name, "tell").write_text(TELL)
        Path(name, "tell").chmod(0o755)
        done = subprocess.run(
            ["unshare", "--mount", "sh", "-ec", NO_GPUS, "sh", name, SCRIPTS / script, folder],
            env={**TASK, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=10,
        )
    return done.stdout


@pytest.mark.parametrize("visible", ["", "NoDevFiles", None])
def test_a_task_without_gpus_asks_nothing(tmp_path: Path, visible: str | None) -> None:
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    done = subprocess.run(
        [SCRIPTS / "task_prolog.sh"],
        env={**TASK, **env, "AFFINITYD_SOCKET": f"{tmp_path}/nonexistent"},
        capture_output=True,
        check=True,
        timeout=10,
    )
    assert done.stdout == b""


def told(socket: str, *, shell: Sequence[str], task: int, folder: str) -> str:
    """Return what is printed by a script that is run in a folder, in somebody's environment."""
    done = subprocess.run(
        [*shell, SCRIPTS / "task_prolog.sh"],
        env={
            **FUNCTIONS,
            "SLURM_JOB_ID": "1",
            "SLURM_TASK_PID": f"{task}",
            "CUDA_VISIBLE_DEVICES": "0",
            "AFFINITYD_SOCKET": socket,
        },
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=10,
    )
    return done.stdout


@pytest.mark.parametrize(
    "shell", [["dash"], ["bash"], ["bash", "--posix"], ["busybox", "sh"]], ids=str
)
def test_functions_that_a_user_exports_are_nothing_to_it(shell: list[str]) -> None:
    cpu = max(os.sched_getaffinity(0))
    lines = (f"AFFINITYD_CPULIST={cpu}", "AFFINITYD_LOCALITY=local", f"AFFINITYD_ALLOWED={mask()}")
    plan = http("200 OK", "".join(f"{line}\n" for line in lines).encode())
    with (
        TemporaryDirectory() as folder,
        serving(Path(folder, "socket"), answering(plan)) as path,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as task,
    ):
        said = told(f"{path}", shell=shell, task=task.pid, folder=folder)
        cpus = os.sched_getaffinity(task.pid)
    assert said == "".join(f"export {line}\n" for line in lines)
    assert cpus == {cpu}


def test_a_socket_s_path_that_depends_on_the_folder_is_told() -> None:
    with TemporaryDirectory() as folder, serving(Path(folder, "socket"), answering(b"")):
        said = told("socket", shell=["sh"], task=os.getpid(), folder=folder)
    assert said == "export AFFINITYD_UNPINNED=AFFINITYD_SOCKET=socket is no path from /\n"
