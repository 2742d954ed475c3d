"""The scripts of slurm/ alone: what they read, request and print; no Slurm runs."""

import errno
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from affinityd.cpuset import format_mask, parse_list
from affinityd.request.environment import MPS_LIST, MPS_PIPE, OF_NUMBERS, VISIBLE_NAMES
from tests.e2e.slurm.alone import JOB, SHELLS, UID, Node, beside, task_prolog
from tests.e2e.slurm.node import GPU_NODES, MINORS, SCRIPTS
from tests.support.daemons import Daemon, running
from tests.support.servers import Behaviour, answering, hanging, http, serving
from tests.support.tiny import BOTH, FAR, NEAR, tiny_tree

FAR_GPU = {"CUDA_VISIBLE_DEVICES": "1"}  #: near FAR
DEVICES = "nvidiactl nvidia0 nvidia1 nvidia2 nvidia3"
TWO_TASKS = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "0,1", "SLURM_LOCALID": "0"}
SOCKET = "/run/affinityd/affinityd.sock"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tree(tmp_path_factory.mktemp("machine"), *GPU_NODES, minors=MINORS)


@pytest.fixture(scope="module")
def daemon(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("node") / "run", "--root", f"{tree}") as daemon:
        yield daemon


@pytest.fixture
def node(daemon: Daemon) -> Node:
    """Return the daemon's node; the job's prolog has noted the job's GPU there."""
    note(daemon, "gpus=1\n")
    return Node(run=daemon.socket.parent, devices=DEVICES)


def note(daemon: Daemon, text: str) -> None:
    notes = daemon.socket.with_name("jobs")
    notes.mkdir(exist_ok=True)
    (notes / JOB["SLURM_JOB_ID"]).write_text(text)


def pinned(cpus: str, *more: str, locality: str = "local") -> tuple[str, str]:
    """Return the lines that task_prolog.sh prints for a task with these CPUs, and the CPUs."""
    lines = (f"CPULIST={cpus}", f"LOCALITY={locality}", f"ALLOWED={BOTH}", *more)
    return "".join(f"export AFFINITYD_{line}\n" for line in lines), cpus


def left(why: str) -> tuple[str, str]:
    """Return the lines that task_prolog.sh prints for an unpinned task, and the task's CPUs."""
    return f"export AFFINITYD_UNPINNED={why}\n", BOTH


IDLE = "WARNINGS=idle_cpus"
NEAR_IT = pinned(FAR, "JOB_GPUS=1", IDLE)
ALL = pinned(BOTH, "JOB_GPUS=1", locality="mixed")
APART = pinned(FAR, "JOB_GPUS=1", f"{IDLE},share_unavailable")
OFF, WOULD_PIN = left("AFFINITYD=off"), left(f"observe: would run on CPUs {FAR} (local)")
NO_WORD = "is none of on, observe and off"
NO_ASSIGNMENT = "is not written as NAME=value"
OF_SITE = "AFFINITYD=off in /etc/affinityd.conf"
MALFORMED = "Malformed request:"
NOWHERE = left("no daemon answers at /nonexistent, and no node.json is beside it")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("", "No", OFF),
        ("", "on", NEAR_IT),
        ("", "obsreve", left(f"AFFINITYD {NO_WORD}")),
        ("_MODE", "unique-interleaved", APART),
        ("_MODE", "", NEAR_IT),
        ("_MODE", "all&scope=socket", f"{MALFORMED} mode: 'all&scope=socket' is not one of all"),
        ("_MODE", "$(id)", f"{MALFORMED} mode: '$(id)' is not one of"),
        ("_SCOPE", "x" * 5000, f"{MALFORMED} scope: 'xxxxx"),
        ("_CPUS", "lots", f"{MALFORMED} AFFINITYD_CPUS: 'lots' is neither none nor a number"),
        ("_MIN_PHYSICAL_CORES", "2", "Cannot be satisfied: "),
        ("_SOCKET", "/nonexistent", NOWHERE),
        ("_SOCKET", "--help", left("AFFINITYD_SOCKET=--help is not an absolute path")),
    ],
)
def test_variables_of_the_job_choose_its_plan(
    node: Node, name: str, text: str, expected: str | tuple[str, str]
) -> None:
    printed = task_prolog(node, {**FAR_GPU, f"AFFINITYD{name}": text})
    if isinstance(expected, str):  # the beginning of a refusal
        assert (printed[0].startswith(left(expected)[0][:-1]), printed[1]) == (True, BOTH), printed
    else:
        assert printed == expected


@pytest.mark.parametrize(
    ("site", "job", "expected"),
    [
        ("", "observe", WOULD_PIN),
        ("AFFINITYD='Observe'", "on", WOULD_PIN),
        ("AFFINITYD=observe", "off", OFF),
        ("AFFINITYD=off", "observe", left(OF_SITE)),
        ("AFFINITYD=off\nAFFINITYD=on", None, NEAR_IT),
        ("AFFINITYD=obs reve", None, left(f"AFFINITYD in /etc/affinityd.conf {NO_WORD}")),
        ("\nexport AFFINITYD=off", None, left(f"/etc/affinityd.conf:2 {NO_ASSIGNMENT}")),
    ],
)
def test_a_site_s_settings_limit_a_job(
    node: Node, site: str, job: str | None, expected: tuple[str, str]
) -> None:
    env = {} if job is None else {"AFFINITYD": job}
    assert task_prolog(replace(node, settings=site), {**FAR_GPU, **env}) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_settings_in_a_folder_that_only_root_may_search_leave_a_task_unpinned(
    node: Node, shell: str
) -> None:
    link = "mkdir -m 700 /run/site\nmv /etc/affinityd.conf /run/site\n"
    link += "ln -s /run/site/affinityd.conf /etc"
    linked = replace(node, settings="AFFINITYD=off", more=link, shell=shell)
    assert task_prolog(linked, FAR_GPU) == left("/etc/affinityd.conf cannot be read")


def test_a_site_chooses_for_all_jobs_and_a_job_may_choose_otherwise(node: Node) -> None:
    settings = "# ours\nAFFINITYD_MODE='all'\nAFFINITYD_SCOPE=\"socket\"\nOTHER=1\nPATH=/x"
    site_s = replace(node, settings=settings)
    assert task_prolog(site_s, FAR_GPU) == ALL
    otherwise = {"AFFINITYD_MODE": "node", "AFFINITYD_SCOPE": "node"}
    assert task_prolog(site_s, {**FAR_GPU, **otherwise}) == NEAR_IT


@pytest.mark.parametrize("site", ["", "AFFINITYD_CHOOSE_GPU=yes"])
def test_a_task_keeps_its_cpus_and_gets_the_gpu_near_them(daemon: Daemon, site: str) -> None:
    """GPUs are chosen by the masks of all tasks; without the setting, CPUs are exchanged."""
    masks = ",".join(format_mask(parse_list(cpu)) for cpu in (FAR, NEAR))
    bound = {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": masks}
    env = {**TWO_TASKS, **bound, "SLURM_GPUS_ON_NODE": "2", "CUDA_VISIBLE_DEVICES": "0,1"}
    node = Node(run=daemon.socket.parent, devices=DEVICES, settings=site)
    choice = {} if site else {"AFFINITYD_CHOOSE_GPU": "yes"}
    printed, cpus = task_prolog(node, {**env, **choice}, FAR)
    assert cpus == FAR
    assert "export CUDA_VISIBLE_DEVICES=1\nexport AFFINITYD_GPUS=1\n" in printed
    printed, cpus = task_prolog(replace(node, settings=""), env, FAR)
    assert (cpus, "VISIBLE" in printed) == (NEAR, False)
    unknown = {**env, "AFFINITYD_GPU_ORDER": "unknown"}
    printed, cpus = task_prolog(replace(node, settings=""), unknown, FAR)
    assert printed.startswith(
        "export AFFINITYD_UNPINNED=Left as it is: AFFINITYD_GPU_ORDER=unknown"
    )
    assert cpus == FAR


def test_a_mask_that_would_not_be_narrowed_is_not_set(node: Node) -> None:
    refusing = replace(node, more="mount --bind /bin/false /usr/bin/taskset")
    whole = {"AFFINITYD_MODE": "all", "AFFINITYD_SCOPE": "socket"}
    assert task_prolog(refusing, {**FAR_GPU, **whole}) == ALL
    assert task_prolog(refusing, FAR_GPU) == left(f"CPUs {FAR} were refused")


FIRST = {"SLURMD_NODENAME": "gpu07", "SLURM_PROCID": "8", "SLURM_LOCALID": "0"}
EXCLUSIVE = {"SLURM_JOB_CPUS_PER_NODE": "32", "SLURM_CPUS_ON_NODE": "8"}


@pytest.mark.parametrize(
    ("env", "line"),
    [
        ({}, f"CPUs {FAR} (local); idle_cpus"),
        (EXCLUSIVE, "; its step has 8 of the job's 32 CPUs: give -c; idle_cpus"),
        ({**EXCLUSIVE, "SLURM_CPUS_PER_TASK": "1"}, "(local); idle_cpus"),
        ({"AFFINITYD": "off"}, "unpinned: AFFINITYD=off"),
        ({"AFFINITYD_VERBOSE": "no"}, None),
        ({"SLURM_LOCALID": "1"}, None),
        # Variables that undo the pin, and variables that prevent this.
        ({"OMP_PLACES": "cores"}, "; OMP_PLACES binds it, too"),
        ({"OMP_PLACES": "cores", "OMP_PROC_BIND": "false"}, "(local); idle_cpus"),
        ({"GOMP_CPU_AFFINITY": "0 1"}, "; GOMP_CPU_AFFINITY binds it, too"),
        ({"KMP_AFFINITY": "granularity=fine,compact,1,0"}, "; KMP_AFFINITY binds it, too"),
        ({"AMD_CPU_AFFINITY": "0"}, "(local); idle_cpus"),
    ],
    ids=str,
)
def test_the_first_task_of_a_node_prints_its_place_if_asked(
    node: Node, env: Mapping[str, str], line: str | None
) -> None:
    lines = task_prolog(node, {**FAR_GPU, **FIRST, "AFFINITYD_VERBOSE": "1", **env})[0].splitlines()
    printed = [it for it in lines if not it.startswith("export ")]
    assert len(printed) == (line is not None)
    if line is not None:
        assert printed[0].startswith("print affinityd: gpu07, task 8: ")
        assert printed[0].endswith(line)


@pytest.mark.parametrize(
    ("before", "env", "locality", "is_slurms"),
    [
        (FAR, {}, "local", False),
        (NEAR, {}, "remote", True),
        (BOTH, {"SLURM_CPUS_PER_TASK": "2"}, "mixed", True),
        (BOTH, {"AFFINITYD_MODE": "all", "AFFINITYD_SCOPE": "socket"}, "mixed", False),
    ],
)
def test_the_line_of_a_far_task_names_the_slurm_option_that_helps(
    node: Node, before: str, env: Mapping[str, str], locality: str, *, is_slurms: bool
) -> None:
    task = {**FAR_GPU, **FIRST, **TWO_TASKS, "AFFINITYD_VERBOSE": "1", **env}
    (line,) = re.findall("^print .*$", task_prolog(node, task, before)[0], re.MULTILINE)
    assert f"({locality})" in line
    for option in "--gpu-bind=closest", " -c,", "Cores=", "--gres-flags=enforce-binding":
        assert (option in line) == is_slurms


# Without a daemon.

#: /usr/bin/affinityd, as a site installs it.
COMMAND = """\
mkdir /run/bin
ln -s {} /run/bin/affinityd
{}
mount -t overlay -o lowerdir=/run/bin:/usr/bin overlay /usr/bin
"""
INSTALLED = Path(sys.executable).with_name("affinityd")
#: Removes the time limit: a busy machine is slow, and these tests check the answer.
PATIENT = """\
printf '#!/bin/sh\\nshift 3\\nexec "$@"\\n' >/run/bin/timeout
chmod 755 /run/bin/timeout
"""
#: Another folder for the daemon: at the usual path the node.json of a replayed machine is ignored.
FOLDER = "mkdir /run/other\nmount --bind /run/affinityd /run/other\n"
OTHER = "/run/other/affinityd.sock"
NONE = left(f"no daemon answers at {OTHER}, and no node.json is beside it")
NO_COMMAND = left(
    f"no daemon answers at {OTHER}, and without /usr/bin/affinityd and /usr/bin/timeout "
    "node.json is not read"
)


@pytest.fixture
def ended(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """Yield a node whose daemon was killed: its socket and its node.json still exist."""
    run = tmp_path_factory.mktemp("ended") / "run"
    with running(run, "--root", f"{tree}") as daemon:
        note(daemon, "gpus=1\n")
        daemon.process.kill()
        daemon.process.wait()
        more = FOLDER + COMMAND.format(INSTALLED, PATIENT)
        yield Node(run=run, devices=DEVICES, more=more, settings=f"AFFINITYD_SOCKET={OTHER}")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_task_is_planned_from_the_node_json_that_a_daemon_left(ended: Node, shell: str) -> None:
    run = ended.run
    assert run
    task = replace(ended, shell=shell)
    assert (run / "affinityd.sock").is_socket()
    assert task_prolog(task, FAR_GPU) == NEAR_IT
    assert task_prolog(task, {**FAR_GPU, "AFFINITYD": "observe"}) == WOULD_PIN
    refused = task_prolog(task, {**FAR_GPU, "AFFINITYD_MODE": "x"})[0]
    assert refused.startswith(left(f"{MALFORMED} mode: ")[0][:-1])
    (run / "affinityd.sock").unlink()  # a daemon that stops removes its socket
    assert task_prolog(task, FAR_GPU) == NEAR_IT
    assert "which was replayed" in task_prolog(replace(task, settings=""), FAR_GPU)[0]
    assert task_prolog(replace(task, more=FOLDER), FAR_GPU) == NO_COMMAND
    (run / "node.json").unlink()
    assert task_prolog(task, FAR_GPU) == NONE


@pytest.mark.parametrize(
    "fault", ["a server that hangs", "an answer byte by byte", "no HTTP", "10 MB"]
)
def test_a_task_is_planned_from_node_json_if_the_daemon_does_not_answer(
    ended: Node, fault: str
) -> None:
    behave, _ = FAULTS[fault]
    assert ended.run
    assert behave
    (ended.run / "affinityd.sock").unlink()
    with serving(ended.run / "affinityd.sock", behave) as path:
        path.chmod(0o666)
        assert task_prolog(ended, FAR_GPU) == NEAR_IT


def test_a_command_that_hangs_is_ended_when_the_task_s_time_is_over(ended: Node) -> None:
    sleeps = "rm /run/bin/affinityd\nprintf '#!/bin/sh\\nexec sleep 60\\n' >/run/bin/affinityd\n"
    hanging = FOLDER + COMMAND.format("/bin/sh", f"{sleeps}chmod 755 /run/bin/affinityd")
    late = left("no answer in time from /run/other/node.json")
    assert task_prolog(replace(ended, more=hanging), FAR_GPU) == late


@pytest.mark.parametrize("shell", SHELLS)
def test_only_mps_daemons_of_root_or_of_the_user_make_an_index_uncertain(
    node: Node, shell: str
) -> None:
    assert node.run
    pipe = node.run / "mps"
    pipe.mkdir(exist_ok=True)
    with socket.socket(socket.AF_UNIX) as control:
        control.bind(f"{pipe}/control")
    task = replace(node, shell=shell)
    env = {**FAR_GPU, "CUDA_MPS_PIPE_DIRECTORY": "/run/affinityd/mps"}
    for owner, is_known in ((UID + 1, True), (UID, False), (0, False)):
        os.chown(pipe / "control", owner, owner)
        printed = task_prolog(task, env)
        assert (printed == NEAR_IT) == is_known
        assert ("by the MPS daemon's list, " in printed[0]) != is_known
    (pipe / "control").unlink()


# A job's note.


@pytest.mark.parametrize("text", ["gpus=0\n", "gpus=$(id)", "x" * 100_000], ids=len)
def test_a_note_that_is_malformed_or_names_other_gpus_is_ignored(
    node: Node, daemon: Daemon, text: str
) -> None:
    """A note may have another order than gres.conf. Unique modes need a note to divide CPUs."""
    note(daemon, text)
    assert task_prolog(node, FAR_GPU) == pinned(FAR, IDLE)
    unique, _ = task_prolog(node, {**FAR_GPU, **TWO_TASKS, "AFFINITYD_MODE": "exclusive"})
    assert "AFFINITYD_WARNINGS=not_unique" in unique


# The prolog: if its status is not 0, Slurm drains the node.


@pytest.mark.parametrize(
    ("settings", "listens", "file", "status"),
    [
        ("", None, "", 0),
        ('AFFINITYD_DRAIN="yes"', None, "", 1),
        ("AFFINITYD_DRAIN=yes", None, "node.json", 0),
        ("AFFINITYD_DRAIN=yes", hanging, "", 0),
        ("AFFINITYD_DRAIN=yes", answering(http("503 Service Unavailable", b"")), "", 0),
        ("AFFINITYD=observe\nAFFINITYD_DRAIN=yes", None, "", 0),
        ("\tAFFINITYD = off\nAFFINITYD_DRAIN=yes", None, "", 0),
    ],
)
def test_a_site_may_drain_a_node_on_which_no_task_is_pinned(
    settings: str, listens: Behaviour | None, file: str, status: int
) -> None:
    line = f"affinityd: no daemon is ready at {SOCKET}: "
    tells = "observe" not in settings and "off" not in settings
    with beside(listens) as folder:
        (folder / "jobs").mkdir()
        (folder / (file or "none.json")).touch()
        done = Node(run=folder, settings=settings).run_script("prolog.sh", {**JOB, **FAR_GPU})
        assert (folder / "jobs/1").read_text() == "gpus=1\n"
        assert (done.status, done.stderr[: len(line)]) == (status, line if tells else "")


def test_a_daemon_with_a_full_queue_drains_no_node() -> None:
    with beside(None) as folder, socket.socket(socket.AF_UNIX) as daemon, ExitStack() as clients:
        daemon.bind(f"{folder}/affinityd.sock")
        daemon.listen(0)
        is_full = False
        while not is_full:
            client = clients.enter_context(socket.socket(socket.AF_UNIX))
            client.settimeout(0)
            is_full = client.connect_ex(f"{folder}/affinityd.sock") == errno.EAGAIN
        (folder / "jobs").mkdir()
        node = Node(run=folder, settings="AFFINITYD_DRAIN=yes")
        done = node.run_script("prolog.sh", {**JOB, **FAR_GPU})
    assert done.stderr.startswith(f"affinityd: no daemon is ready at {SOCKET}: ")
    assert done.status == 0


def test_a_prolog_linked_into_a_folder_of_prologs_finds_the_daemon(node: Node) -> None:
    link = f"ln -s {SCRIPTS}/prolog.sh /run/50-affinityd"
    linked = replace(node, settings="AFFINITYD_DRAIN=yes", more=link)
    done = linked.run_script("/run/50-affinityd", {**JOB, **FAR_GPU})
    assert (done.status, done.stderr) == (0, "")


#: A logger that fails, as it does without syslog.
NO_LOGGER = "mount --bind /bin/false /usr/bin/logger\n"


@pytest.mark.parametrize(
    ("settings", "more", "told"),
    [
        (
            "AFFINITYD_DRAIN=yes\nexport X=1",
            "",
            "/etc/affinityd.conf:2 is not written as NAME=value",
        ),
        ("AFFINITYD_DRAIN=yes", "cp {scripts}/prolog.sh /run", "/run/pinning.sh cannot be read"),
    ],
)
def test_a_prolog_that_cannot_read_its_own_files_drains_no_node(
    settings: str, more: str, told: str
) -> None:
    with beside(None) as folder:
        (folder / "jobs").mkdir()
        more = f"{NO_LOGGER}{more.format(scripts=SCRIPTS)}"
        node = Node(run=folder, settings=settings, more=more)
        done = node.run_script(
            "/run/prolog.sh" if "/run" in told else "prolog.sh", {**JOB, **FAR_GPU}
        )
    line = f"affinityd: {told}: affinityd pins nothing on this node"
    assert (done.status, done.stderr.splitlines()[-1]) == (0, line)


@pytest.mark.parametrize("job", ["", "../../etc/passwd", "12x"])
def test_a_prolog_without_a_job_changes_nothing(job: str) -> None:
    with beside(None) as folder:
        done = Node(run=folder, more=NO_LOGGER).run_script(
            "prolog.sh", {"SLURM_JOB_ID": job, **FAR_GPU}
        )
        assert [*folder.iterdir()] == []
    line = f"affinityd: SLURM_JOB_ID={job} is not a job; Prolog= of slurm.conf runs this"
    assert (done.status, done.lines) == (0, [line])


# The request of task_prolog.sh for given variables and device files; no Slurm needs to run.

NVIDIA = "nvidiactl nvidia0 nvidia1 nvidia-uvm dri/renderD128"
AMD = "kfd dri/renderD128 dri/renderD129 dri/card0"
GAUDI = "accel/accel2 accel/accel3"
#: Every variable that lists devices; MPS's are left out, since no MPS daemon runs.
LISTS = dict.fromkeys({*VISIBLE_NAMES, *OF_NUMBERS} - {MPS_PIPE, MPS_LIST}, "0")
STEP = {"SLURM_STEP_ID": "0", "SLURM_GTIDS": "4,5", "SLURM_LOCALID": "1"}
MASKS = {"SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1,0x2"}
ODD = {"CUDA_VISIBLE_DEVICES": "MIG-1a/2 &visible=3#\n4", "SLURM_NTASKS": "$(id)"}

#: What the request depends on → device files, variables, and the `granted` of the request.
ASKED: dict[str, tuple[str, Mapping[str, str], str | None]] = {
    "NVIDIA: the files that can be opened": (NVIDIA, FAR_GPU, "minor:0,minor:1"),
    "NVIDIA: AMD's files do not count": ("nvidiactl dri/renderD128", FAR_GPU, None),
    "AMD: the variable and the files": (AMD, {"ROCR_VISIBLE_DEVICES": "1"}, "drm:128,drm:129"),
    "Gaudi: the files": (GAUDI, {"SLURM_GPUS_ON_NODE": "2"}, "accel:2,accel:3"),
    "every vendor's variables": ("", {**FAR_GPU, **LISTS}, None),
    "values are sent unchanged": ("", ODD, None),
    "a step": ("", {**FAR_GPU, **STEP, "SLURM_JOB_CPUS_PER_NODE": "8(x2)"}, None),
    "masks that Slurm chose": ("", {**FAR_GPU, **STEP, **MASKS}, None),
    "the user's choices": ("", {**FAR_GPU, "AFFINITYD_MODE": "even", "AFFINITYD_CPUS": "3"}, None),
}


def asked(devices: str, env: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], str]:
    """Return the parameters of the first request, its variables, and the task's CPUs."""
    lines: list[str] = []

    def behave(connection: socket.socket, _over: threading.Event) -> None:
        lines.append(connection.recv(65536).decode().splitlines()[0])
        connection.sendall(http("404 Not Found", b"No such GPU: none\n"))

    with beside(behave) as folder:
        printed, cpus = task_prolog(Node(run=folder, devices=devices), env)
    assert printed == "export AFFINITYD_UNPINNED=No such GPU: none\n"
    (line,) = lines
    query = urlsplit(line.split()[1]).query
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True)
    variables = dict(text.split("=", 1) for name, text in pairs if name == "env")
    return {name: text for name, text in pairs if name != "env"}, variables, cpus


@pytest.mark.parametrize("by", ASKED)
def test_the_request_has_the_variables_and_device_files_of_the_task(by: str) -> None:
    devices, env, granted = ASKED[by]
    stated, variables, cpus = asked(devices, env)
    files = {} if granted is None else {"granted": granted}
    assert stated == {"format": "shell", "cpuset": cpus, **files}
    assert {name: text for name, text in variables.items() if text} == {**JOB, **env}


@pytest.mark.parametrize(
    "env", [{}, {"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}]
)
def test_a_task_without_gpus_sends_no_request(env: Mapping[str, str]) -> None:
    with beside(None) as folder:
        assert task_prolog(Node(run=folder), env)[0] == ""


def without_gpus(script: str, env: Mapping[str, str], more: str = "") -> str:
    """Return a script's output on a node without GPUs, and the names of the files that it left."""
    look = '[ ! -e /run/affinityd-jobs ] || echo "left $(find /run/affinityd-jobs)"\n'
    done = Node(devices="", more=more, after=look).run_script(script, {**JOB, **env})
    assert (done.status, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("env", [{}, {"SLURM_GPUS_ON_NODE": "0"}, {"AFFINITYD": "off"}], ids=str)
@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh", "task_prolog.sh"])
def test_without_gpus_scripts_do_nothing(script: str, env: Mapping[str, str]) -> None:
    assert without_gpus(script, env) == ""


def test_a_node_without_gpus_unsets_the_gpus_of_the_submitting_shell() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "0,1", "SLURM_GPUS_ON_NODE": "2", "AFFINITYD_CPULIST": "7"}
    env |= {"AFFINITYD_RDMA": "a:1,b:1", "UCCL_P2P_RDMA_DEV": "a,b", "NCCL_IB_HCA": "=c:1"}
    unset = "AFFINITYD_CPULIST", "AFFINITYD_RDMA", "UCCL_P2P_RDMA_DEV"
    assert without_gpus("task_prolog.sh", env).splitlines() == [f"unset {name}" for name in unset]


def test_an_epilog_removes_the_note_of_its_job() -> None:
    notes = "/run/affinityd-jobs"
    assert without_gpus("epilog.sh", {}, f"mkdir {notes}; : >{notes}/1\n") == f"left {notes}\n"


# What task_prolog.sh does with any answer, in any environment, and run by any sh.

GPU = {"CUDA_VISIBLE_DEVICES": "0"}
MUCH = 10 * 1024 * 1024  #: bytes
NO_PLAN, LATE = f"no plan from {SOCKET}", f"no answer in time from {SOCKET}"
WOULD = f"observe: would run on CPUs {FAR} (local)"


def plan(**lines: str) -> str:
    """Return a plan for CPU FAR, with these lines changed."""
    answer = {"CPULIST": FAR, "LOCALITY": "local", "ALLOWED": "0-1", **lines}
    return "".join(f"AFFINITYD_{name}={text}\n" for name, text in answer.items())


def ok(body: str | bytes, *fields: str) -> Behaviour:
    return answering(http("200 OK", body if isinstance(body, bytes) else body.encode(), *fields))


def dribbling(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    for byte in http("200 OK", plan().encode()):
        connection.send(bytes([byte]))
        if over.wait(0.1):
            return


#: Fault → the server that listens, and the reason that the task is told.
FAULTS: dict[str, tuple[Behaviour | None, str]] = {
    "no server": (None, f"no daemon answers at {SOCKET}"),
    "a server that hangs": (hanging, LATE),
    "an answer byte by byte": (dribbling, LATE),
    "no HTTP": (answering(os.urandom(4096)), NO_PLAN),
    "an empty answer": (ok(""), NO_PLAN),
    "an error": (answering(http("500 Internal Server Error", b"Oh\nno\n")), "Oh"),
    "10 MB": (ok(b"0," * (MUCH // 2)), NO_PLAN),
    "10 MB of a plan": (ok(plan() + "X" * MUCH, "connection: close"), LATE),
    "no cpulist": (ok(plan(CPULIST="all")), NO_PLAN),
    "an empty cpulist": (ok(plan(CPULIST="")), NO_PLAN),
    "a cpulist with a command": (ok(plan(CPULIST="0;touch /tmp/pwned")), NO_PLAN),
    "a cpulist like an option": (ok(plan(CPULIST="-1")), NO_PLAN),
    "a list that ends early": (ok(plan(CPULIST="0,")), NO_PLAN),
    "a CPU that is not here": (ok(plan(CPULIST="4095")), "CPUs 4095 were refused"),
    "a CPU that no machine has": (ok(plan(CPULIST="0-9999999999999999999")), NO_PLAN),
    "a range the wrong way round": (ok(plan(CPULIST="1-0")), "CPUs 1-0 were refused"),
    "an unknown locality": (ok(plan(LOCALITY="far away")), NO_PLAN),
    "switched off": (ok(plan() + "AFFINITYD=off\n"), f"AFFINITYD=off, from the daemon at {SOCKET}"),
    "the daemon observes": (ok(plan() + "AFFINITYD=observe\n"), WOULD),
}


@pytest.fixture(scope="module")
def anywhere() -> str:
    """Return the CPUs of a task that nothing has pinned."""
    with beside(None) as folder:
        return task_prolog(Node(run=folder), {})[1]


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_valid_plan_a_task_stays_where_slurm_put_it(fault: str, anywhere: str) -> None:
    behave, why = FAULTS[fault]
    with beside(behave) as folder:
        printed, cpus = task_prolog(Node(run=folder), GPU)
    assert (printed.startswith(f"export AFFINITYD_UNPINNED={why}"), cpus) == (True, anywhere)
    assert printed.count("\n") == 1


PINNED = "".join(f"export {line}\n" for line in plan().splitlines())


#: A list of CPUs that some shells would cut.
LONG_LIST = ",".join(f"{cpu}" for cpu in range(0, 4000, 2))


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("more", ["\nexport X=1", f",{LONG_LIST}"], ids=len)
def test_only_plan_lines_are_exported_however_long_they_are(more: str, shell: str) -> None:
    with beside(ok(plan(ALLOWED=f"0{more}"))) as folder:
        printed, cpus = task_prolog(Node(run=folder, shell=shell), GPU)
    allowed = f"ALLOWED=0{more}".partition("\n")[0]
    assert (printed, cpus) == (PINNED.replace("ALLOWED=0-1", allowed), FAR)


BAD_TOOL = "#!/bin/sh\necho export STOLEN=1\nsleep 5\n"
FUNCTION = "() { echo export STOLEN=1; exit 3; }"
SCRIPT = "".join((SCRIPTS / name).read_text() for name in ("task_prolog.sh", "pinning.sh"))
OWN_NAMES = {*re.findall(r"\b([a-z_]+)=", SCRIPT), "curl", "taskset", "proc"}
TOLD = ("CPULIST", "LOCALITY", "ALLOWED", "JOB_GPUS", "WARNINGS", "UNPINNED", "RDMA", "GPUS")
LIBRARIES = ("OPENSSL_CONF", "SSLKEYLOGFILE", "GNUTLS_SYSTEM_PRIORITY_FILE")

#: Kinds of a user's environment; the folder has files for some of them.
ENVIRONMENTS: dict[str, Callable[[Path], Mapping[str, str]]] = {
    "a PATH with other tools": lambda folder: {"PATH": f"{folder}:/usr/bin:/bin"},
    "no PATH": lambda _: {"PATH": "/nonexistent"},
    "a start-up file": lambda folder: {"BASH_ENV": f"{folder}/rc", "ENV": f"{folder}/rc"},
    "functions": lambda _: {f"BASH_FUNC_{name}%%": FUNCTION for name in ("cd", "module", "ml")},
    "options of the shell": lambda _: {"SHELLOPTS": "xtrace:noglob:errexit", "PS4": "export "},
    "other separators": lambda _: {"IFS": "0123456789,=:"},
    "a library that is not there": lambda _: {"LD_PRELOAD": "/nonexistent.so"},
    "other libraries": lambda folder: {"LD_LIBRARY_PATH": f"{folder}"},
    "a proxy": lambda _: {"http_proxy": "http://127.0.0.1:1", "ALL_PROXY": "socks5://127.0.0.1:1"},
    "another locale": lambda _: {"LC_ALL": "de_DE.UTF-8", "LANGUAGE": "tr"},
    "settings that never end": lambda folder: dict.fromkeys(LIBRARIES, f"{folder}/fifo"),
    "settings of curl": lambda folder: {"HOME": f"{folder}", "CURL_HOME": f"{folder}"},
    "variables of the script": lambda _: dict.fromkeys(OWN_NAMES, "/nonexistent"),
    "pins of another job": lambda _: {f"AFFINITYD_{name}": "7" for name in TOLD},
}


def fill(folder: Path) -> None:
    for tool in ("curl", "taskset", "sh", "printf", "head", "ls", "id"):
        (folder / tool).write_text(BAD_TOOL)
        (folder / tool).chmod(0o755)
    os.mkfifo(folder / "fifo", 0o666)
    (folder / "rc").write_text("echo export STOLEN=1; exit 3\n")
    (folder / ".curlrc").write_text("url = http://127.0.0.1:1/\noutput = /tmp/stolen\n")


@pytest.fixture(scope="module")
def user_s() -> Iterator[Path]:
    with beside(None) as folder:
        fill(folder)
        yield folder


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("kind", ENVIRONMENTS)
def test_a_user_s_environment_cannot_change_a_pin(user_s: Path, kind: str, shell: str) -> None:
    with beside(ok(plan())) as folder:
        env = {**GPU, **ENVIRONMENTS[kind](user_s)}
        printed, cpus = task_prolog(Node(run=folder, shell=shell), env)
    unset = TOLD if kind == "pins of another job" else ()
    lines = "".join(f"unset AFFINITYD_{name}\n" for name in unset)
    assert (printed, cpus) == (lines + PINNED, FAR)
