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

from affinityd.audit.describe import everything
from affinityd.audit.model import Job
from affinityd.cli import main
from affinityd.cli.commands import enforce
from affinityd.cli.render.enforcement import COLUMNS, lines
from affinityd.enforce import model
from affinityd.enforce.describe import render
from affinityd.enforce.document import EnforceDocument
from affinityd.enforce.enforcer import Enforced
from affinityd.enforce.model import Decision
from affinityd.enforce.policy.file import MAX_FILE
from affinityd.enforce.policy.model import PolicyState, Treatment
from affinityd.json_codec import loads
from affinityd.planner.model import Options
from tests.support.daemons import running
from tests.support.enforce_reports import drifted, enforced, fits, left
from tests.support.paths import REPOSITORY
from tests.support.scans import GPU0, GPU1
from tests.support.servers import Behaviour, answering, hanging, http, serving

OF_RULE_2 = Treatment(Options("exclusive"), rule=2)
ELSEWHERE = "it may run on CPUs 4-7, and is to run on 0-3"
OURS = replace(drifted(104, "share"), treatment=OF_RULE_2, why=ELSEWHERE)
NO_JOBS = replace(left(7, job=None, cause="unpinned"), why="it is in no job: name its cgroup")
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
    """Return what is decided of another process in the same way."""
    facts = replace(decision.process.facts, pid=pid, name=name)
    return replace(decision, process=replace(decision.process, facts=facts))


def written(found: Enforced, **more: Any) -> str:  # noqa: ANN401 - fields of any kind
    """Return the daemon's document; `more`: fields of it that are otherwise."""
    return json.dumps({**json.loads(render(found, everything)), **more})


def read(text: str) -> EnforceDocument:
    return loads(EnforceDocument, text, "enforce")


def shown(*decisions: Decision, fitting: bool = False, **more: Any) -> list[str]:  # noqa: ANN401
    return list(lines(read(written(enforced(*decisions, **more))), fitting=fitting))


# What a person reads.

MENDED = "1 (nvidia 1) needs another allocation, 1 (nvidia 0) is left as it is"

HALF_MENDED = "a pin mends 1 (nvidia 0), 1 (nvidia 1) needs another allocation"


def cells(row: str) -> list[str]:
    return re.split("  +", row)


def test_it_says_what_is_done_then_job_by_job_what_does_not_fit_and_each_why_once() -> None:
    workers = [called(OURS, pid, "loader") for pid in (105, 106, 108)]
    *head, columns, ours, why, no_jobs, name_it, far, remedy = shown(
        fits(100), DAEMON, OURS, *workers, NO_JOBS, FAR
    )
    assert head == [
        "made pins what does not run where it is to",
        "no policy file: every job has the site's mode",
        f"2 GPUs are used from far away: {MENDED}",
        "processes: 1 fit, 4 drifted, 3 left",
    ]
    assert tuple(cells(columns)) == COLUMNS
    assert cells(ours) == [
        *("slurm 7", "nvidia 0", "104-106,108", "python,loader", "exclusive, rule 2", "0", "0-3"),
        "drifted: share, 8 threads",
    ]
    assert cells(no_jobs) == ["no job", "nvidia 0", "7", "python", "-", "0", "-", "left: no_job"]
    assert cells(far)[0] == "pod vision/train-0"
    assert cells(far)[-1] == "left: allocation"
    assert [why, name_it, remedy] == [
        f"  {ELSEWHERE}",
        "  it is in no job: name its cgroup",
        "  gres.conf: Cores=4-7",
    ]


def test_processes_of_one_sentence_have_a_row_for_each_place_and_the_sentence_below() -> None:
    young = [
        replace(drifted(pid, gpu=gpu, rule=rule), verdict="left", reason="young", why="so young")
        for pid, gpu, rule in ((100, GPU0, 1), (101, GPU0, 2), (102, GPU1, 1))
    ]
    *_, head, first, second, why = shown(*young)
    assert head.startswith("job")
    assert first.split()[2:6] == ["nvidia", "0-1", "100,102", "python"]
    assert second.split()[2:6] == ["nvidia", "0", "101", "python"]
    assert why == "  so young"


def test_what_fits_and_what_is_known_on_every_node_is_shown_on_demand() -> None:
    on_purpose = replace(fits(100), on_purpose=1)
    assert shown(on_purpose, DAEMON)[-1] == "processes: 1 fit, 0 drifted, 1 left"
    *_, first, second, why = shown(on_purpose, DAEMON, fitting=True)
    assert first.split("  ")[-1].strip() == "fits, 1 thread on purpose"
    assert second.endswith("left: daemon")
    assert why == "  so it is"


def test_a_crowd_is_cut() -> None:
    crowd = [called(OURS, pid, f"rank{pid}") for pid in range(100, 130, 2)]
    row = shown(*crowd)[-2]
    assert "100,102,104,106,108,110,…  rank100,rank102,rank104,…" in row
    assert row.endswith("drifted: share, 30 threads")


@pytest.mark.parametrize(
    ("job", "name"),
    [
        (Job("slurm", "4711"), "slurm 4711"),
        (Job("kubernetes", "0a1b-2c3d"), "kubernetes 0a1b-2c3d"),
        (Job(model.CONTAINER, "0123456789abcdef"), "container 0123456789ab"),
        (Job(model.CGROUP, "/system.slice/a.service"), "cgroup /system.slice/a.service"),
        (None, "no job"),
    ],
)
def test_a_job_is_called_as_its_scheduler_calls_it(job: Job | None, name: str) -> None:
    assert shown(replace(OURS, job=job))[-2].startswith(f"{name}  ")


@pytest.mark.parametrize(
    ("decisions", "unknown", "line"),
    [
        ([], {}, "no GPU is used from far away"),
        ([], {GPU0: "no NVML"}, "no GPU is used from far away; who uses nvidia 0 is not known"),
        ([drifted()], {}, "1 GPU is used from far away: a pin mends 1 (nvidia 0)"),
        (
            [drifted(), drifted(101, gpu=GPU1)],
            {},
            "2 GPUs are used from far away: a pin mends 2 (nvidia 0-1)",
        ),
        (
            [drifted(), FAR],
            {},
            f"2 GPUs are used from far away: {HALF_MENDED}",
        ),
        (
            [NO_JOBS, replace(NO_JOBS, process=drifted(8, gpu=GPU1).process)],
            {},
            "2 GPUs are used from far away: 2 (nvidia 0-1) are left as they are",
        ),
    ],
)
def test_the_gpus_are_summed_up_and_named(
    decisions: list[Decision], unknown: dict[Any, str], line: str
) -> None:
    assert shown(*decisions, unknown=unknown)[2] == line


READ = 1_790_000_000.0
SAID_READ = "2026-09-21T14:13:20.000Z"


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (PolicyState("/p", READ, 3), f"policy /p: 3 rules, read {SAID_READ}"),
        (
            PolicyState("/p", READ, 1, error="it is no TOML"),
            f"policy /p does not count: it is no TOML; what stands is 1 rule, read {SAID_READ}",
        ),
        (
            PolicyState("/p", error="there is no such file"),
            "policy /p does not count: there is no such file; nothing is pinned",
        ),
    ],
)
def test_it_says_which_policy_counts(policy: PolicyState, line: str) -> None:
    assert shown(policy=policy)[1] == line


def test_what_is_in_its_way_comes_first() -> None:
    first, second, _, third, *_ = shown(does="observe", hindrance="no right", notices=("blind",))
    assert first == "made observes: it touches nothing, and says what it would pin"
    assert second == "it is to pin, and observes: no right"
    assert third == "note: blind"
    assert "not reached by the last pass, as time was up: 3" in shown(unreached=3)


def test_who_does_not_see_everybody_is_told_so() -> None:
    found = enforced(OURS)
    for sees in (lambda _: False, None):
        told = list(lines(read(render(found, sees).decode()), fitting=True))
        assert told[-1].startswith("other users' processes are not shown")
        assert "processes: 0 fit, 1 drifted, 0 left" in told


# What scripts go by.


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
def test_the_exit_status_says_whether_something_does_not_run_where_it_is_to(
    tmp_path: Path, found: Enforced, code: int
) -> None:
    answer = answering(http("200 OK", render(found, everything)))
    with serving(tmp_path / "s", answer) as path:
        assert main(["enforce", "--socket", str(path)]) == code


def test_json_is_the_daemons_document_as_it_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = render(enforced(OURS), everything)
    with serving(tmp_path / "s", answering(http("200 OK", sent))) as path:
        assert main(["enforce", "--json", "--socket", str(path)]) == 1
    assert capsys.readouterr().out == f"{sent.decode()}\n"


def test_json_prints_nothing_that_a_terminal_obeys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = written(enforced(OURS), node="a\x9b\u202e").encode().decode("unicode_escape")
    with serving(tmp_path / "s", answering(http("200 OK", sent.encode()))) as path:
        assert main(["enforce", "--json", "--socket", str(path)]) == 1
    printed = capsys.readouterr().out
    assert printed.strip().isprintable()
    assert json.loads(printed) == json.loads(sent)


def test_a_long_document_is_read_and_prints_nothing_that_a_terminal_obeys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crowd = [called(OURS, pid, "\x1b[2J") for pid in range(100, 3000)]
    sent = render(enforced(*crowd), everything)
    assert len(sent) > 2**20
    with serving(tmp_path / "s", answering(http("200 OK", sent))) as path:
        assert main(["enforce", "--socket", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "100-2999" in printed
    assert "\x1b" not in printed


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (
            answering(http("200 OK", b"{}")),
            "the daemon's /enforce response: enforce has no 'node'",
        ),
        (answering(http("200 OK", b"[[")), "response: enforce is '[[', not JSON"),
        (answering(http("200 OK", b"[" * 10**5)), "enforce is nested too"),
        (answering(http("404 Not Found", b"Not Found: no")), "answered 404: 'Not Found: no'"),
        (answering(b"220 mail\r\n"), "is no affinityd"),
        (hanging, "did not answer in time"),
    ],
    ids=["another document", "no JSON", "a deep one", "an older daemon", "another server", "slow"],
)
def test_an_answer_that_cannot_be_read_is_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    behave: Behaviour,
    said: str,
) -> None:
    monkeypatch.setattr(enforce, "TIMEOUT", 0.3)
    with serving(tmp_path / "s", behave) as path:
        assert main(["enforce", "--socket", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("affinityd enforce: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_without_a_daemon_it_says_where_none_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["enforce", "--socket", f"{tmp_path}/none"]) == 2
    error = f"affinityd enforce: no daemon at {tmp_path}/none: No such file or directory\n"
    assert capsys.readouterr() == ("", error)


def test_of_a_daemon_that_does_not_enforce_it_says_how_it_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        assert main(["enforce", "--socket", str(daemon.socket)]) == 2
    assert capsys.readouterr().err == (
        "affinityd enforce: this daemon does not enforce: start it with --enforce observe or pin, "
        "and without AFFINITYD=off\n"
    )


# A policy that is checked.

POLICY = """
scope = "socket"
[[rule]]
account = ["debug", "bench-*"]
leave = true
[[rule]]
uid = 1005
environment = { TEAM = "v*", CLASS = "a" }
mode = "exclusive"
min_physical_cores = 2
"""

WHO = "uid 1005 and environment TEAM 'v*' and environment CLASS 'a'"
TAKES = "environments must be readable: the daemon needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"


def test_a_policy_is_said_rule_by_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    assert main(["enforce", "--check", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{file}: 2 rules",
        "rule 1: account 'debug' or 'bench-*': let alone",
        f"rule 2: {WHO}: mode exclusive, scope socket, min_physical_cores 2",
        "all others: the site's mode, scope socket",
        f"note: for rules 1-2 {TAKES}",
    ]


def test_the_page_shows_what_is_said_of_its_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = REPOSITORY.joinpath("docs/enforce.md").read_text()
    policy, _ = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (printed,) = re.findall(r"\$ affinityd enforce --check policy.toml\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(policy)
    assert main(["enforce", "--check", "policy.toml"]) == 0
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("content", "printed"),
    [
        ("", ["0 rules", "everybody: the site's mode"]),
        ("leave = true", ["0 rules", "everybody: let alone"]),
        (
            "leave = true\n[[rule]]\nuser = 'eve'\nleave = false\nmode = 'node'",
            ["1 rule", "rule 1: user 'eve': mode node", "all others: let alone"],
        ),
        (
            "observe = true\n[[rule]]\nuser = 'eve'\nobserve = false\nshare = 'node'",
            [
                "1 rule",
                "rule 1: user 'eve': the site's mode, share node",
                "all others: the site's mode, only observed",
            ],
        ),
    ],
)
def test_what_is_done_of_whom_no_rule_names_is_said_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, printed: list[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(content)
    assert main(["enforce", "--check", str(file)]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert [first.removeprefix(f"{file}: "), *others] == printed


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"mode = 'nod'", "mode: 'nod': it is no mode; did you mean node?"),
        (b"[[rule]]\npod = 'a'\nmod = 'node'", "rule 1 (pod = 'a'): unknown 'mod'; did you mean"),
        (b"[[rule]", "it is no TOML: "),
        (b"\xff", "is not UTF-8"),
        (b"#" * (MAX_FILE + 1), f"is longer than {MAX_FILE} bytes"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_a_policy_that_is_none_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    file = tmp_path / "policy.toml"
    if content is not None:
        file.write_bytes(content)
    assert main(["enforce", "--check", str(file)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"affinityd enforce: {file}")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_without_pydantic_it_says_what_brings_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("affinityd.cli.policy_check", "affinityd.daemon.policy_document"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert main(["enforce", "--check", "/none"]) == 2
    assert capsys.readouterr().err.endswith("pip install '.[daemon]' in a checkout\n")


def test_a_check_asks_no_daemon_and_takes_nothing_of_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["enforce", "--check", "/p", "--all"])
    assert caught.value.code == 2
    assert "not allowed with argument --check" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--check", "/p", "--json"], ["--all", "--format", "json"]])
def test_lines_are_no_json(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert main(["enforce", *words]) == 2
    assert "--all and --check print lines; leave out --json" in capsys.readouterr().err
