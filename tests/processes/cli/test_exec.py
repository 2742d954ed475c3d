"""`affinityd exec`: real commands on real CPUs, with a daemon, without one, and with a bad one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd.cli.exec_options import PARAMETERS
from affinityd.discovery import open_tree
from affinityd.discovery.snapshot import write_snapshot
from affinityd.linux.memory_policy import POLICIES
from affinityd.request.parameters import PARAMETERS as PLAN_S
from tests.support.daemons import Daemon, running
from tests.support.tiny import BOTH, FAR, LOOK, NEAR, PROGRAM, exec_, tiny_tree

#: What tells a command where it is, and why it was not pinned.
TOLD = ("sh", "-c", "grep Cpus_allowed_list /proc/self/status; env | grep ^AFFINITYD_UNPINNED; :")
OBSERVED = f"AFFINITYD_UNPINNED=observe: would run on CPUs {FAR} (local)"

# Where it runs.


@pytest.mark.parametrize(
    ("task", "words", "cpus"),
    [
        pytest.param({"LOCAL_RANK": "0"}, [], NEAR, id="the first rank, beside the first GPU"),
        pytest.param({"LOCAL_RANK": "1"}, [], FAR, id="the second rank, beside the second GPU"),
        pytest.param({"LOCAL_RANK": "3"}, [], FAR, id="the fourth of two GPUs: the second again"),
        pytest.param({}, ["--rank", "1"], FAR, id="a rank that is said"),
        pytest.param({"LOCAL_RANK": "0"}, ["--rank=1"], FAR, id="what is said wins"),
        pytest.param({}, ["--gpus=0,1"], BOTH, id="no rank, and both GPUs by name"),
        pytest.param({}, ["--gpus", "1"], FAR, id="one GPU by its index"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, [], FAR, id="only the second is visible"),
        pytest.param(
            {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1,0"}, [], FAR, id="in another order"
        ),
        pytest.param({"AFFINITYD": "off"}, ["--gpus", "1"], BOTH, id="opted out"),
    ],
)
def test_the_command_runs_beside_its_gpu(
    here: Mapping[str, str], task: dict[str, str], words: list[str], cpus: str
) -> None:
    done = exec_(*words, "--", *LOOK, env={**here, **task})
    assert done.cpus == cpus
    assert done.stderr == ""


def test_a_place_that_is_not_near_is_told(here: Mapping[str, str]) -> None:
    done = exec_("--cpuset", FAR, "--gpus", "0", "--", *LOOK, env=here)
    line = f"affinityd exec: CPUs {FAR} are not near the GPU; allowed are {FAR}"
    assert (done.cpus, done.lines) == (FAR, [line])


SPREAD = (
    "affinityd exec: this process sees GPUs 0-1 of nodes 0-1 and has the CPUs near any of them; "
    "if it uses only one GPU, name it: --gpus N, in Python bind(gpus=N)"
)
TASK = {"SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "0"}


@pytest.mark.parametrize(
    ("task", "words", "lines"),
    [
        pytest.param({}, [], [SPREAD], id="no rank"),
        pytest.param({**TASK, "SLURM_GTIDS": "0"}, [], [SPREAD], id="a lone task"),
        pytest.param({"LOCAL_RANK": "0"}, [], [], id="a rank drives one of them"),
        pytest.param(
            {
                **TASK,
                "SLURM_GTIDS": "0,1",
                "SLURM_GPUS_ON_NODE": "4",
                "CUDA_VISIBLE_DEVICES": "0,1",
            },
            [],
            [],
            id="one of several tasks, which has two",
        ),
        pytest.param({}, ["--gpus=0,1"], [], id="they were named"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "1"}, [], [], id="it sees one"),
    ],
)
def test_a_lone_process_with_gpus_on_several_nodes_is_told_so_in_one_line(
    here: Mapping[str, str], task: dict[str, str], words: list[str], lines: list[str]
) -> None:
    assert exec_(*words, "--", "true", env={**here, **task}).lines == lines


@pytest.mark.parametrize(
    ("task", "words", "told"),
    [
        ({"LOCAL_RANK": "1"}, [], f"rank 1 (LOCAL_RANK): GPU 1, node 1, CPU {FAR}"),
        (
            {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            [],
            f"rank 0 of 2 (OMPI_COMM_WORLD_LOCAL_RANK): GPU 0, node 0, CPU {NEAR}",
        ),
        ({"LOCAL_RANK": "0"}, ["--rank=1"], f"rank 1: GPU 1, node 1, CPU {FAR}"),
        ({}, ["--gpus=0,1"], f"no rank: GPUs 0-1, nodes 0-1, CPUs {BOTH}"),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [], f"no rank: GPU 1, node 1, CPU {FAR}"),
    ],
)
@pytest.mark.parametrize("flag", ["-v", "--verbose"])
def test_it_says_in_one_line_which_rank_gpu_node_and_cpus_it_is(
    here: Mapping[str, str], task: dict[str, str], words: list[str], told: str, flag: str
) -> None:
    done = exec_(flag, *words, "--", "true", env={**here, **task})
    assert done.lines == [f"affinityd exec: {told} (local, planned from daemon)"]


def test_a_machine_that_a_variable_left_behind_is_told(tmp_path: Path) -> None:
    archive = tmp_path / "gpu07.tar.xz"
    write_snapshot(open_tree(str(tiny_tree(tmp_path / "gpu07"))), None, archive)
    for name, value in (("MACHINE", "dgx-a100"), ("ROOT", str(archive))):
        env = {"AFFINITYD_SOCKET": "/nonexistent", f"AFFINITYD_{name}": value}
        first, *_ = exec_("--rank=0", "--", "true", env=env).lines
        replayed = "planned on a replayed machine, not on this one"
        assert first.startswith(f"affinityd exec: AFFINITYD_{name} is '")
        assert first.endswith(f"': {replayed}")
        (refused,) = exec_("--gpus=9", "--", "true", env=env).lines
        assert refused.endswith(f"{replayed}; the command runs unpinned")


@pytest.mark.parametrize("mode", [0o700, 0o770])
def test_of_a_file_that_is_not_there_it_says_nothing(tmp_path: Path, mode: int) -> None:
    """A folder of a user's own holds neither a daemon's socket nor its node.json."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    if os.geteuid() == 0:
        os.chown(tmp_path / "run", 1234, 1234)
    env = {
        "AFFINITYD_SOCKET": str(tmp_path / "run" / "affinityd.sock"),
        "AFFINITYD_ROOT": str(tiny_tree(tmp_path / "machine")),
        "AFFINITYD_DAEMON_UID": "",
    }
    done = exec_("--rank=1", "--", *LOOK, env=env)
    assert (done.cpus, done.stderr) == (FAR, "")


def test_children_and_their_threads_inherit_the_mask(here: Mapping[str, str]) -> None:
    look = (
        "import os, threading as t; f = lambda: print(os.sched_getaffinity(0)); "
        "x = t.Thread(target=f); x.start(); x.join()"
    )
    done = exec_("--gpus=1", "--", "sh", "-c", f"{sys.executable} -c '{look}'; true", env=here)
    assert done.stdout == f"{{{FAR}}}\n"


@pytest.mark.parametrize("name", ["types", "operator", "collections", "_socket", "json", "random"])
def test_a_module_of_the_job_s_does_not_stand_in_for_python_s(
    here: Mapping[str, str], tmp_path: Path, name: str
) -> None:
    (tmp_path / f"{name}.py").write_text("import sys; sys.exit(0)")
    words = [sys.executable, str(PROGRAM), "exec", "--gpus=1", "--", *LOOK]
    for socket in (here["AFFINITYD_SOCKET"], "/nonexistent"):
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "AFFINITYD_SOCKET": socket}
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.stdout.startswith("Cpus_allowed_list")
        assert "Traceback" not in done.stderr


def test_without_options_the_two_dashes_may_be_left_out(here: Mapping[str, str]) -> None:
    assert exec_(*LOOK, env={**here, "LOCAL_RANK": "1"}).cpus == FAR


@pytest.mark.parametrize(
    ("said", "words", "cpus"),
    [
        pytest.param({}, [], BOTH, id="by default all of the near CPUs"),
        pytest.param({"AFFINITYD_MODE": "single-unique"}, [], FAR, id="a mode of the environment"),
        pytest.param({"AFFINITYD_MODE": "single"}, ["--mode=node"], BOTH, id="an option wins"),
        pytest.param({"AFFINITYD_MAX_PHYSICAL_CORES": "1"}, [], NEAR, id="another parameter"),
    ],
)
def test_a_site_chooses_by_one_variable(
    tmp_path: Path, said: dict[str, str], words: list[str], cpus: str
) -> None:
    machine = tiny_tree(tmp_path / "machine", 0, 0)
    (machine / "sys/devices/system/node/node0/cpulist").write_text(BOTH)
    env = {"AFFINITYD_SOCKET": str(tmp_path / "none"), "AFFINITYD_ROOT": str(machine)}
    done = exec_(*words, "--rank=1", "--", *LOOK, env={**env, **said})
    assert done.cpus == cpus


def test_a_site_chooses_by_a_line_of_its_file(tiny_daemon: Daemon, tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    conf.write_text(
        f"AFFINITYD_SOCKET={tiny_daemon.socket}\nAFFINITYD_CPUSET=none\nAFFINITYD_MODE=even\n"
    )
    done = exec_("--gpus=0,1", "--rank=1", "--", *LOOK, env={"AFFINITYD_CONFIG": str(conf)})
    assert done.cpus == FAR


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false"])
def test_a_user_opts_out_as_one_says_no(here: Mapping[str, str], word: str) -> None:
    done = exec_("--gpus=1", "--", *LOOK, env={**here, "AFFINITYD": word})
    assert (done.cpus, done.stderr) == (BOTH, "")


@pytest.mark.parametrize("flags", [[], ["--fail-closed"]], ids=["open", "closed"])
def test_observing_leaves_the_mask_and_tells_the_command_alone(
    here: Mapping[str, str], flags: list[str]
) -> None:
    for gpu, told in (("1", OBSERVED), ("9", "AFFINITYD_UNPINNED=no GPU 9; visible are ")):
        done = exec_(*flags, f"--gpus={gpu}", "--", *TOLD, env={**here, "AFFINITYD": "observe"})
        cpus, line = done.stdout.splitlines()
        assert (cpus, line[: len(told)], done.lines) == (f"Cpus_allowed_list:\t{BOTH}", told, [])


def test_a_job_cannot_turn_on_what_its_site_turned_off(tiny_daemon: Daemon, tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    env = {"AFFINITYD_CONFIG": str(conf)}
    for site, job, told in (
        *(("off", "on", []), ("off", "observe", []), ("observe", "off", [])),
        *(("observe", "on", [OBSERVED]), ("on", "observe", [OBSERVED])),
    ):
        conf.write_text(f"AFFINITYD_SOCKET={tiny_daemon.socket}\nAFFINITYD={site}\n")
        done = exec_("--fail-closed", "--gpus=1", "--", *TOLD, env={**env, "AFFINITYD": job})
        assert done.stdout.splitlines() == [f"Cpus_allowed_list:\t{BOTH}", *told]
        assert done.lines == []
    conf.write_text(f"AFFINITYD_SOCKET={tiny_daemon.socket}\nAFFINITYD=on\n")
    assert exec_("--gpus=1", "--", *LOOK, env=env).cpus == FAR


@pytest.mark.parametrize(("site", "told"), [("observe", True), ("off", False)])
def test_what_its_daemon_says_counts_when_that_is_gone_too(
    tmp_path: Path, site: str, told: bool
) -> None:
    tree = tiny_tree(tmp_path / "machine")
    env = {"AFFINITYD": site}
    with running(tmp_path / "run", "--root", str(tree), env=env) as daemon:
        here = {"AFFINITYD_SOCKET": str(daemon.socket), "AFFINITYD": "on"}
        there = exec_("--gpus=1", "--", *TOLD, env=here)
    gone = exec_("--gpus=1", "--", *TOLD, env=here)
    expected = [f"Cpus_allowed_list:\t{BOTH}", *([OBSERVED] if told else [])]
    assert [it.stdout.splitlines() for it in (there, gone)] == [expected] * 2
    assert [it.lines for it in (there, gone)] == [[], []]


def test_a_word_that_is_none_leaves_the_command_unpinned_and_is_told(
    here: Mapping[str, str],
) -> None:
    done = exec_("--gpus=1", "--", *LOOK, env={**here, "AFFINITYD": "obsreve"})
    line = "affinityd exec: AFFINITYD: 'obsreve' is none of on, observe, off"
    assert (done.cpus, done.lines) == (BOTH, [f"{line}; the command runs unpinned"])


def test_what_is_pinned_is_not_told_why_an_earlier_one_was_not(here: Mapping[str, str]) -> None:
    env = {**here, "AFFINITYD_UNPINNED": "observe: would run on CPUs 9 (local)"}
    done = exec_("--gpus=1", "--", *TOLD, env=env)
    assert done.stdout.splitlines() == [f"Cpus_allowed_list:\t{FAR}"]


def test_where_its_interpreter_s_path_is_too_long_the_program_starts_all_the_same(
    here: Mapping[str, str], tmp_path: Path
) -> None:
    """The kernel refuses the first line, and a shell takes the program for its own."""
    program = tmp_path / "affinityd"
    text = PROGRAM.read_text().removeprefix("#!python\n")
    program.write_text(f"#!/{'x' * 300}\n{text}")
    program.chmod(0o755)
    (tmp_path / "python3").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (tmp_path / "python3").chmod(0o755)
    words = [str(program), "exec", "--gpus=1", "--", *LOOK]
    env = {**os.environ, **here, "PYTHONPATH": str(PROGRAM.parents[1])}
    printed = subprocess.check_output(["sh", "-c", '"$@"', "sh", *words], env=env, text=True)
    assert printed == f"Cpus_allowed_list:\t{FAR}\n"


# What it tells the command.


def test_the_command_learns_where_it_is(here: Mapping[str, str]) -> None:
    done = exec_("--gpus=1", "--", "env", env=here)
    said = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert {name: said[name] for name in said if name.startswith("AFFINITYD_C")} == {
        "AFFINITYD_CPULIST": FAR,
        "AFFINITYD_CONFIG": "/nonexistent",
    }
    assert said["AFFINITYD_LOCALITY"] == "local"
    assert said["AFFINITYD_ALLOWED"] == BOTH
    assert "OMP_NUM_THREADS" not in said


@pytest.mark.parametrize(
    ("before", "words", "after"),
    [
        ({}, ["--omp"], "1"),
        ({"OMP_NUM_THREADS": "7"}, ["--omp"], "7"),
        ({"OMP_NUM_THREADS": ""}, ["--omp"], "1"),
        ({}, [], ""),
    ],
)
def test_openmp_s_threads_are_set_only_when_asked_for_and_unset(
    here: Mapping[str, str], before: dict[str, str], words: list[str], after: str
) -> None:
    done = exec_(
        *words, "--gpus=1", "--", "sh", "-c", "echo $OMP_NUM_THREADS", env={**here, **before}
    )
    assert done.stdout.strip() == after


def test_a_second_pin_plans_as_the_first_did(here: Mapping[str, str]) -> None:
    again = [sys.executable, "-m", "affinityd", "exec", "--rank=1", "--"]
    launcher = exec_("--rank=0", "--", *again, *LOOK, env=here)
    assert launcher.cpus == FAR  # the mask that we set is no limit …
    confined = exec_("--rank=0", "--", "taskset", "-c", NEAR, *again, *LOOK, env=here)
    assert confined.cpus == FAR  # … though somebody set the same again


# The command is itself.


def test_the_exit_status_is_the_command_s(here: Mapping[str, str]) -> None:
    assert exec_("--", "sh", "-c", "exit 7", env=here).status == 7
    assert exec_("--", "sh", "-c", "kill -9 $$", env=here).status == -signal.SIGKILL


def test_stdin_and_words_are_the_command_s(here: Mapping[str, str]) -> None:
    words = ["", "--", "-x", "a b", "$HOME", "ü"]
    script = 'for word; do printf "<%s>" "$word"; done; cat'
    done = subprocess.run(
        [sys.executable, "-m", "affinityd", "exec", "--", "sh", "-c", script, "sh", *words],
        input="in",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **here},
    )
    assert done.stdout == "<><--><-x><a b><$HOME><ü>in"


@pytest.mark.parametrize(
    ("command", "status", "line"),
    [
        (["/nonexistent"], 127, "'/nonexistent' cannot be run: No such file or directory"),
        (["no-such-command"], 127, "'no-such-command' cannot be run: No such file or directory"),
        (["/etc/passwd"], 126, "'/etc/passwd' cannot be run: Permission denied"),
        ([""], 127, "'' cannot be run: No such file or directory"),
    ],
)
def test_a_command_that_cannot_be_run_is_named(
    here: Mapping[str, str], command: list[str], status: int, line: str
) -> None:
    done = exec_("--rank=0", "--", *command, env=here)
    assert (done.status, done.lines) == (status, [f"affinityd exec: {line}"])


# What is wrong is said in one line, and the command runs.


@pytest.mark.parametrize(
    ("words", "env", "line"),
    [
        (["--mdoe", "node"], {}, "'--mdoe' is no option; did you mean --mode?"),
        (["-x"], {}, "'-x' is no option"),
        (["--mode", "fast"], {}, "mode: 'fast' is not one of all, single"),
        (["--mode"], {}, "--mode has no value; write it like --mode=VALUE"),
        (["--strict", "maybe"], {}, "strict: 'maybe' is neither true nor false"),
        (["--omp", "true"], {}, "'true' is no option"),
        (["--omp=false"], {}, "'--omp=false': --omp takes no value"),
        (["--fail_closed"], {}, "'--fail_closed' is no option; did you mean --fail-closed?"),
        (["--gpus", "9"], {}, "no GPU 9; visible are 0 (0000:10:00.0), 1 (0000:11:00.0)"),
        (["--gpus", "0", "--gpus", "1"], {}, "--gpus is given twice"),
        (["--rank", "x"], {}, "rank: 'x' is not a list of ranks"),
        (["--timeout", "soon"], {}, "timeout: 'soon' is not a number of seconds from 0.001"),
        (["--timeout", "nan"], {}, "timeout: 'nan' is not a number of seconds from 0.001"),
        (["--memory", "near"], {}, "memory: 'near' is not one of local, preferred"),
        (["--strict", "--cpuset", FAR, "--gpus", "0"], {}, "strict: "),
        ([], {"CUDA_VISIBLE_DEVICES": ""}, "no GPU is visible to the caller"),
        ([], {"AFFINITYD_MODE": "fast"}, "mode: 'fast' is not one of all, single"),
        ([], {"AFFINITYD_TIMEOUT": "0"}, "timeout: '0' is not a number"),
    ],
)
def test_without_a_plan_the_command_runs_unpinned_with_one_line(
    here: Mapping[str, str], words: list[str], env: dict[str, str], line: str
) -> None:
    done = exec_(*words, "--", *LOOK, env={**here, **env})
    assert done.cpus == BOTH
    (said,) = done.lines
    assert said.startswith(f"affinityd exec: {line}")
    assert said.endswith("; the command runs unpinned")
    closed = exec_("--fail-closed", *words, "--", *LOOK, env={**here, **env})
    assert (closed.status, closed.stdout, len(closed.lines)) == (125, "", 1)


@pytest.mark.parametrize(
    "words", [[], ["--"], ["--mode", "node"], ["--mode=node", "--"], ["--omp", "true"]]
)
def test_without_a_command_there_is_nothing_to_run(words: list[str]) -> None:
    done = exec_(*words, env={})
    assert done.status == 125
    assert done.lines[0].endswith(
        "is missing before the command; write affinityd exec -- CMD …"
    ) or (done.lines == ["affinityd exec: the command is missing; write affinityd exec -- CMD …"])


def test_its_options_are_a_plan_s() -> None:
    assert set(PLAN_S) - set(PARAMETERS) == {"format", "observe", "whose"}


def test_help_is_there() -> None:
    done = exec_("--help", env={})
    assert done.status == 0
    assert all(f"--{name.replace('_', '-')}" in done.stdout for name in PARAMETERS)


def test_the_help_begins_with_what_a_person_chooses() -> None:
    chosen, others = exec_("--help", env={}).stdout.split("\nmore of the plan")
    assert "-v, --verbose" in chosen
    assert "--cpu-bind" not in chosen
    assert f"--memory {'|'.join(POLICIES)}" in chosen
    for text, some in ((chosen, "--gpus --rank --mode --memory --omp"), (others, "--ranks --job")):
        assert (
            re.findall(r"^  (--[a-z-]+)", text, re.MULTILINE)[: len(some.split())] == some.split()
        )


@pytest.mark.parametrize("words", [["--gpus=9", "--", "sh", "-c", "exit 7"], ["--", "/none"]])
def test_a_stderr_that_nobody_can_write_to_is_no_end(
    here: Mapping[str, str], words: list[str]
) -> None:
    program = [sys.executable, str(PROGRAM), "exec", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(program, env={**os.environ, **here}, stderr=full, check=False)
    assert done.returncode == (7 if "sh" in words else 127)


# Memory.


def test_memory_is_held_where_it_was_asked_for(here: Mapping[str, str]) -> None:
    done = exec_("--memory=bind", "--gpus=0", "--", "head", "-n1", "/proc/self/numa_maps", env=here)
    assert done.stdout.split()[1] == "bind:0"
    assert done.stderr == ""


def test_memory_that_cannot_be_had_is_no_end(here: Mapping[str, str]) -> None:
    done = exec_("--memory=bind", "--gpus=1", "--", "head", "-n1", "/proc/self/numa_maps", env=here)
    assert done.status == 0
    assert done.stdout.split()[1] == "default"  # there is no node 1 here
    assert done.lines
    assert all(line.startswith("affinityd exec: memory: ") for line in done.lines)


# What it costs.


def imported(*words: str, env: Mapping[str, str]) -> set[str]:
    """Return the modules that a run of Python imports."""
    program = [sys.executable, "-X", "importtime", *words]
    env = {**os.environ, **env}
    done = subprocess.run(program, capture_output=True, text=True, env=env, check=True)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}


def test_nothing_heavy_is_imported_on_the_way(here: Mapping[str, str]) -> None:
    ours = imported(str(PROGRAM), "exec", "--gpus=1", "--", "true", env=here)
    ours -= imported("-c", "pass", env=here)
    assert "affinityd.client.find_plan" in ours
    heavy = {"re", "json", "argparse", "dataclasses", "http.client", "socket", "typing", "enum"}
    heavy |= {"pathlib", "functools", "inspect", "signal", "collections", "collections.abc"}
    assert ours & (heavy | {"importlib", "affinityd.linux.memory_policy"}) == set()
