"""What the daemon's surroundings keep from it: real namespaces, real mounts."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from affinityd.cli import main
from affinityd.cpuset import CpuSet
from affinityd.discovery import open_tree
from affinityd.doctor.daemon_probe import probe
from affinityd.doctor.facts import NO_ANSWER, DaemonFacts, NodeFacts
from affinityd.linux.cgroup import cpuset_of
from affinityd.request.document import AllowedCpus
from tests.support.children import children_of
from tests.support.doctor_facts import TWO, Expected, check, n_a, well
from tests.support.servers import answering, http, serving

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces of one's own take root")

UNKNOWN = "the daemon does not know who asks"


@contextmanager
def waiting(*before: str) -> Iterator[int]:
    """Run a process by way of a command; yield its pid."""
    command = [*before, "sh", "-c", "echo ready && exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process.pid
        finally:
            process.kill()


def facts(
    pid: int, answer: AllowedCpus | str = NO_ANSWER, cpuset: CpuSet | None = None
) -> NodeFacts:
    daemon = DaemonFacts("s", listens=True, pid=pid, allowed=answer, own_cpuset=cpuset)
    return NodeFacts(TWO, open_tree("/"), daemon=daemon)


def mounting(*commands: str) -> Sequence[str]:
    """Return what runs a command in a mount namespace in which these have been run."""
    return ("unshare", "--mount", "sh", "-ec", "; ".join((*commands, 'exec "$@"')), "sh")


@needs_root
@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param((), well("has the users and devices of this machine"), id="none"),
        pytest.param(
            mounting("mount -t tmpfs tmpfs /dev"),
            Expected("warn", "has a /dev of its own, without the files of GPUs", "PrivateDevices="),
            id="a /dev of its own",
        ),
        pytest.param(
            ("unshare", "--user", "--map-root-user"),
            Expected("warn", "is in a user namespace of its own", "take PrivateUsers="),
            id="users of its own",
        ),
    ],
)
def test_surroundings(before: Sequence[str], expected: Expected) -> None:
    with waiting(*before) as pid:
        check("sandbox", facts(pid), expected)


OURS = cpuset_of(os.getpid())


@pytest.mark.parametrize(
    ("answer", "cpuset", "expected"),
    [
        (AllowedCpus("0-3", "caller", "0-3"), OURS, well("within its cpuset, CPUs 0-3")),
        (AllowedCpus("0-3", "caller", None), None, well("the daemon knows who asks")),
        (
            AllowedCpus("0-3", "caller", None),
            frozenset({0, 1}),
            Expected("warn", "and no cpuset: it does not see its cgroup", "mount the node's /sys"),
        ),
        (AllowedCpus("0-3", "node", None), OURS, Expected("warn", UNKNOWN, "its log says why")),
        ("this node has no GPU", OURS, n_a("this node has no GPU")),
    ],
    ids=["known", "known by its mask", "without its cpuset", "unknown", "it plans nothing"],
)
def test_what_the_daemon_says_of_who_asks(
    answer: AllowedCpus | str, cpuset: CpuSet | None, expected: Expected
) -> None:
    with waiting() as pid:
        check("caller", facts(pid, answer, cpuset), expected)


def plan(**allowed: object) -> bytes:
    document = {"allowed": {"cpulist": "0-3", "source": "caller", "within": "0-3", **allowed}}
    return http("200 OK", json.dumps(document).encode())


def refusal(text: str) -> bytes:
    return http("409 Conflict", text.encode())


CLEARS = "\x1b[2J\n"  #: a screen, where it reaches one


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param(plan(), well("CPUs 0-3"), id="a plan"),
        pytest.param(http("200 OK", b"[" * 200_000), n_a("nested too deeply"), id="too deep"),
        pytest.param(http("200 OK", b"[]"), n_a("plan is [], not an object"), id="a list"),
        pytest.param(plan(within=["0-3"]), n_a("within is ['0-3']"), id="a cpuset that is a list"),
        pytest.param(plan(within=CLEARS), n_a("plan.allowed.within: "), id="a cpuset that is none"),
        pytest.param(plan(source=["caller"]), n_a("source is"), id="a source that is a list"),
        pytest.param(refusal("no such GPU"), n_a("409: 'no such GPU'"), id="another refusal"),
        pytest.param(refusal("Cannot be satisfied: too few"), n_a("too few"), id="a refusal"),
        pytest.param(http("409 Conflict", b"\xff"), n_a("no text"), id="a refusal that is no text"),
        pytest.param(
            refusal(f"Cannot be satisfied: {CLEARS * 20_000}"),
            n_a(repr(CLEARS * 100)[1:-1]),
            id="a reason without an end",
        ),
    ],
)
def test_whoever_listens_is_told_of_in_lines_that_do_no_harm(
    answer: bytes,
    expected: Expected,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AFFINITYD_CONFIG", os.fspath(tmp_path / "none"))
    with serving(tmp_path / "s", answering(answer)) as path:
        daemon = probe(os.fspath(path))
        main(["doctor", "socket", "caller", "enforce", "--socket", os.fspath(path)])
    check("caller", NodeFacts(TWO, open_tree("/"), daemon=daemon), expected)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(line.isprintable() and len(line) < 5000 for line in printed.out.splitlines())


@needs_root
@pytest.mark.parametrize(
    ("before", "cause", "remedy"),
    [
        pytest.param(
            ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
            "is in a pid namespace of its own",
            "take PrivatePIDs=",
            id="pids of its own",
        ),
        pytest.param(
            (
                *mounting("mount -t proc -o hidepid=ptraceable proc /proc"),
                *("setpriv", "--bounding-set=-all", "--inh-caps=-all"),
            ),
            "/proc is mounted with hidepid=ptraceable",
            "take ProtectProc=",
            id="a /proc that hides",
        ),
    ],
)
def test_why_it_does_not_know_who_asks(before: Sequence[str], cause: str, remedy: str) -> None:
    with waiting(*before) as pid:
        inner = next(iter(children_of(pid)), pid)
        check(
            "caller",
            facts(inner, AllowedCpus("0-3", "node", None)),
            Expected("warn", cause, remedy),
        )


@needs_root
def test_that_no_cgroups_are_mounted_is_told() -> None:
    with waiting(*mounting("umount -l /sys/fs/cgroup")) as pid:
        expected = Expected("warn", "no cgroups are mounted where it runs", "/sys/fs/cgroup")
        check("caller", facts(pid, AllowedCpus("0-3", "caller", None), frozenset({0})), expected)
