"""`affinityd enforce`, as a person runs it: what a daemon answers, and a policy that is checked."""

from __future__ import annotations

import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from affinityd.audit.document import everything
from affinityd.audit.model import Job
from affinityd.cli import main
from affinityd.cli.render.enforcement import lines
from affinityd.enforce import model
from affinityd.enforce.document import Enforced, EnforceDocument, render
from affinityd.enforce.model import Decision
from affinityd.enforce.policy import PolicyState, Treatment
from affinityd.json_codec import loads
from affinityd.planner import Options
from tests.support.enforce_reports import drifted, enforced, fits, left
from tests.support.paths import REPOSITORY
from tests.support.scans import GPU0, GPU1
from tests.support.servers import Behaviour, answering, http, serving

Capture = pytest.CaptureFixture[str]

OURS = replace(
    drifted(104, "share"),
    treatment=Treatment(Options("exclusive"), rule=2),
    why="it may run on CPUs 4-7, and should run on 0-3",
)
LONE = replace(left(7, job=None, cause="unpinned"), why="it is in no job: name its cgroup")
FAR = replace(
    left(300, "allocation", gpu=GPU1, cause="allocation"),
    why="gres.conf: Cores=4-7",
    job=Job("kubernetes", "0a1b"),
    pod="vision/train-0",
)
DAEMON = left(9, "daemon", is_daemon=True)


@pytest.fixture(autouse=True)
def _no_settings_of_this_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    monkeypatch.delenv("AFFINITYD_SOCKET", raising=False)


def called(decision: Decision, pid: int, name: str) -> Decision:
    facts = replace(decision.process.facts, pid=pid, name=name)
    return replace(decision, process=replace(decision.process, facts=facts))


def shown(*decisions: Decision, fitting: bool = False, **more: Any) -> list[str]:  # noqa: ANN401
    report = render(enforced(*decisions, **more), everything)
    return list(lines(loads(EnforceDocument, report, "enforce"), fitting=fitting))


# What a person reads.

ALLOCATE = "1 (nvidia 1) needs another allocation"
BROKEN = PolicyState("/p", 1_790_000_000.0, 1, error="no TOML")
MADE = (
    replace(fits(100), on_purpose=1),
    DAEMON,
    *(called(OURS, pid, f"r{pid}") for pid in (104, 105, *range(107, 120, 2))),
    replace(OURS, treatment=Treatment(Options("exclusive"), rule=1)),
    LONE,
    FAR,
    *(
        replace(drifted(pid), job=Job(kind, name))
        for pid, kind, name in (
            (301, "kubernetes", "0a1b-2c3d"),
            (302, model.CONTAINER, f"/libpod_parent/libpod-{'0123456789abcdef' * 4}"),
            (303, model.CGROUP, "/system.slice/a.service"),
        )
    ),
)
TOLD = """
made observes: it changes nothing, and reports what it would pin
it was told to pin, and can only observe: no right
policy /p has an error: no TOML; the last good one applies: 1 rule, read 2026-09-21T14:13:20.000Z
note: blind
2 GPUs are used from far away: 1 (nvidia 1) needs another allocation, 1 (nvidia 0) is left alone
processes: 1 fit, 13 drifted, 3 left
not pinned yet, as the time limit was reached: 3 processes
job|gpu|pid|name|mode|may run on|should run on|verdict
slurm 7|nvidia 0|100|python|node|0|0-3|fits, 1 thread on purpose
slurm 7|nvidia 0|9|python|-|0|-|left: daemon
|so it is
slurm 7|nvidia 0|104-105,107,109,111,113,115,…|r104,r105,r107,…|exclusive, rule 2|0|0-3|\
drifted: share, 18 threads
slurm 7|nvidia 0|104|python|exclusive, rule 1|0|0-3|drifted: share, 2 threads
|it may run on CPUs 4-7, and should run on 0-3
no job|nvidia 0|7|python|-|0|-|left: no_job
|it is in no job: name its cgroup
pod vision/train-0|nvidia 1|300|python|-|0|-|left: allocation
|gres.conf: Cores=4-7
kubernetes 0a1b-2c3d|nvidia 0|301|python|node|0|0-3|drifted: mask, 2 threads
container 0123456789ab|nvidia 0|302|python|node|0|0-3|drifted: mask, 2 threads
cgroup /system.slice/a.service|nvidia 0|303|python|node|0|0-3|drifted: mask, 2 threads
"""


def test_the_report_has_the_hindrance_first_then_each_job_with_its_reason_once() -> None:
    hindered = {"does": "observe", "hindrance": "no right", "policy": BROKEN, "unreached": 3}
    lines = TOLD.strip().splitlines()
    every = shown(*MADE, fitting=True, notices=("blind",), **hindered)
    assert [re.sub("  +", "|", line) for line in every] == lines
    does, policy, far, counts, *table = shown(*MADE)
    assert does == "made pins processes that run in the wrong place"
    assert policy == "no policy file: every job has the site's mode"
    without_what_fits = [*lines[4:6], lines[7], *lines[11:]]
    assert [re.sub("  +", "|", line) for line in (far, counts, *table)] == without_what_fits


def test_the_report_names_the_policy_in_force() -> None:
    good = shown(policy=PolicyState("/p", 1_790_000_000.0, 3))[1]
    assert good == "policy /p: 3 rules, read 2026-09-21T14:13:20.000Z"
    none = shown(policy=PolicyState("/p", error="no file"))[1]
    assert none == "policy /p has an error: no file; nothing is pinned"


OTHER = replace(LONE, process=drifted(8, gpu=GPU1).process)


def test_the_summary_counts_and_names_gpus_by_remedy() -> None:
    for decisions, unknown, line in (
        ([], {GPU0: "x"}, "no GPU is {}; the processes of nvidia 0 are not known"),
        ([drifted()], {}, "1 GPU is {}: a pin fixes 1 (nvidia 0)"),
        ([drifted(), FAR], {}, f"2 GPUs are {{}}: a pin fixes 1 (nvidia 0), {ALLOCATE}"),
        ([LONE, OTHER], {}, "2 GPUs are {}: 2 (nvidia 0-1) are left alone"),
    ):
        assert shown(*decisions, unknown=unknown)[2] == line.format("used from far away")


def test_a_report_without_other_users_processes_says_so() -> None:
    for sees in (lambda _: False, None):
        report = loads(EnforceDocument, render(enforced(OURS), sees), "enforce")
        told = list(lines(report, fitting=True))
        assert told[-1].startswith("other users' processes are not shown")
        assert "processes: 0 fit, 1 drifted, 0 left" in told


# What scripts go by.


def answered(folder: Path, answer: bytes | Behaviour, *flags: str) -> int:
    behave = answering(http("200 OK", answer)) if isinstance(answer, bytes) else answer
    with serving(folder / "s", behave) as path:
        return main(["enforce", "--socket", str(path), *flags])


@pytest.mark.parametrize(
    ("found", "code"),
    [
        pytest.param(enforced(fits(), DAEMON), 0, id="all fit"),
        pytest.param(enforced(left(1, "policy")), 0, id="left, where it is to run anyway"),
        pytest.param(enforced(OURS), 1, id="drifted, though near"),
        pytest.param(enforced(FAR), 1, id="another allocation is needed"),
        pytest.param(enforced(left(1, "policy", cause="mask")), 1, id="left far away"),
        pytest.param(enforced(left(1, "young", would="share")), 1, id="left on others' CPUs"),
        pytest.param(enforced(fits(), unknown={GPU0: "no NVML"}), 0, id="one GPU is unknown"),
        pytest.param(enforced(unknown={GPU0: "x", GPU1: "x"}), 2, id="all GPUs are unknown"),
    ],
)
def test_the_exit_status_is_1_if_a_process_runs_in_the_wrong_place(
    tmp_path: Path, found: Enforced, code: int
) -> None:
    assert answered(tmp_path, render(found, everything)) == code


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_control_characters_of_a_document_are_escaped(
    tmp_path: Path, capsys: Capture, flags: tuple[str, ...]
) -> None:
    crowd = [called(OURS, pid, "\x9b2J\u202e") for pid in range(100, 3000)]
    document = json.loads(render(enforced(*crowd), everything))
    sent = json.dumps(document, ensure_ascii=False)
    assert len(sent) > 2**20
    assert answered(tmp_path, sent.encode(), *flags) == 1
    printed = capsys.readouterr().out
    assert printed.replace("\n", "").isprintable()
    assert json.loads(printed) == document if flags else "100-2999" in printed


def test_json_is_the_daemons_document_unchanged(tmp_path: Path, capsys: Capture) -> None:
    sent = render(enforced(OURS), everything)
    assert answered(tmp_path, sent, "--json") == 1
    assert capsys.readouterr().out == f"{sent.decode()}\n"


def test_an_error_names_the_missing_file(capsys: Capture) -> None:
    for flag, said in (("--socket", "no daemon at /x/y"), ("--check", "/x/y cannot be read")):
        assert main(["enforce", flag, "/x/y"]) == 2
        error = f"affinityd enforce: {said}: No such file or directory\n"
        assert capsys.readouterr() == ("", error)


# A policy that is checked.
EVE = "[[rule]]\nuser = 'eve'\n"
EVES = "1 rule\nrule 1: user 'eve': "
OTHERS, SOCKET = "all others: the site's mode", "scope socket"


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ("", "0 rules\nall jobs: the site's mode"),
        ("leave=true", "0 rules\nall jobs: left alone"),
        (f"scope='socket'\n{EVE}mode='all'", f"{EVES}mode all, {SOCKET}\n{OTHERS}, {SOCKET}"),
        (f"leave=true\n{EVE}leave=false\nmode='all'", f"{EVES}mode all\nall others: left alone"),
        (f"observe=true\n{EVE}observe=false", f"{EVES}the site's mode\n{OTHERS}, only observed"),
    ],
)
def test_top_level_settings_of_a_policy_are_the_defaults_of_its_rules(
    tmp_path: Path, capsys: Capture, content: str, printed: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(content)
    assert main(["enforce", "--check", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: {printed}\n"


def test_the_page_shows_the_output_of_check_for_its_policy(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = REPOSITORY.joinpath("docs/enforce-policy.md").read_text()
    policy, _ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (printed,) = re.findall(r"\$ affinityd enforce --check policy.toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(policy)
    assert main(["enforce", "--check", "policy.toml"]) == 0
    assert capsys.readouterr().out == printed


def test_without_a_reader_of_toml_the_error_names_the_extra_to_install(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("affinityd.cli.commands.enforce", "affinityd.daemon.policy_document"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("tomllib", "tomli"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["enforce", "--check", "/none"]) == 2
    assert capsys.readouterr().err.endswith("affinityd's extra daemon (docs/install.md)\n")
