"""The policy of enforcement: its file, its rules, and the processes that they match."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.daemon.policy_document import KEYS, parse
from affinityd.enforce.policy import (
    MAX_FILE,
    Policy,
    PolicyError,
    PolicyFile,
    PolicyState,
    Treatment,
)
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.enforce.policy.identity import paths
from affinityd.planner import Options
from affinityd.planner.modes import MODES
from tests.support.asking import is_one_short_line

SITE = """
mode = "node"
min_physical_cores = 2
rule = [
  { partition = ["debug", "interactive*"], leave = true },
  { account = "bio-?", user = ["alice", "bob"], mode = "unique-contiguous", share = "node" },
  { namespace = "ml-*", environment = { TEAM = "vision*", SIZE = ["big", "[0-9]*"] }, \
mode = "socket", min_physical_cores = 1 },
  { uid = [1001, 1002], scope = "socket" },
  { cgroup = "/gpu.slice/*" },
  { pod = "notebook-*", mode = "all" },
]
"""
BIG = {"TEAM": "vision-3", "SIZE": "7b"}


@pytest.mark.parametrize(
    ("who", "rule"),
    [
        (Who(), None),
        (Who(partition="debug"), 1),
        (Who(partition="interactive-2"), 1),
        (Who(partition="Debug"), None),
        (Who(partition="debug2"), None),
        (Who(account="bio-1", user="bob"), 2),
        (Who(account="bio-1", user="eve"), None),
        (Who(account="bio-1"), None),  # what is not known matches nothing
        (Who(account="bio-12", user="bob"), None),
        (Who(1001, partition="debug"), 1),
        (Who(namespace="ml-a", environment=BIG), 3),
        (Who(namespace="ml-a", environment={"TEAM": "vision"}), None),
        (Who(namespace="ml-a"), None),
        (Who(1002), 4),
        (Who(cgroups=("/", "/gpu.slice/a/b")), 5),
        (Who(cgroups=("/x/gpu.slice/a",)), None),
        (Who(pod="notebook-x"), 6),
    ],
)
def test_the_first_rule_of_which_every_key_matches_applies(who: Who, rule: int | None) -> None:
    assert parse(SITE).treatment(who).rule == rule


def test_a_rules_settings_override_those_at_the_top() -> None:
    policy, top = parse(SITE), Options("node", min_physical_cores=2)
    assert policy.defaults == Treatment(top)
    assert [it.treatment for it in policy.rules] == [
        Treatment(top, leave=True, rule=1),
        Treatment(replace(top, mode="unique_contiguous", share="node"), rule=2),
        Treatment(Options("socket"), rule=3),
        Treatment(replace(top, mode="all", scope="socket"), rule=4),
        Treatment(top, rule=5),
        Treatment(replace(top, mode="all"), rule=6),
    ]


ROOT = "[[rule]]\nuid = 0\n"
DEFAULT = Treatment(Options("node"), "granted")
EXCLUSIVE = Treatment(Options("exclusive", scope="socket", balanced=False))


@pytest.mark.parametrize(
    ("text", "site", "treatment"),
    [
        ("", Treatment(), DEFAULT),
        ("", EXCLUSIVE, EXCLUSIVE),
        ("cpus = 2", EXCLUSIVE, replace(EXCLUSIVE, cpus=2)),
        ("mode = 'all'", EXCLUSIVE, Treatment(replace(EXCLUSIVE.options, mode="all"))),
        # A scope alone is that of all cores.
        ("scope = 'socket'", DEFAULT, Treatment(Options("all", scope="socket"))),
        ("scope = 'socket'\nmode = 'node'", DEFAULT, Treatment(Options("node", scope="socket"))),
        (f"{ROOT}scope = 'socket'", EXCLUSIVE, replace(EXCLUSIVE, rule=1)),
        ("leave = true\nmode = 'all'", DEFAULT, Treatment(Options("all"), leave=True)),
        (f"leave = true\n{ROOT}leave = false", DEFAULT, replace(DEFAULT, rule=1)),
    ],
)
def test_settings_that_a_policy_omits_are_the_sites(
    text: str, site: Treatment, treatment: Treatment
) -> None:
    assert parse(text, site).treatment(Who(uid=0)) == treatment


LEAVES = """
rule = [
  { partition = "debug", uid = 1000, leave = true },
  { namespace = "prod", mode = "all" },
  { environment = { TIER = "gold" }, leave = true },
]
"""
NO_ENVIRONMENT = frozenset(("partition", "account", "user", "environment"))
NO_POD = frozenset(("namespace", "pod"))
PROD = Who(1, namespace="prod", unread=NO_ENVIRONMENT)


@pytest.mark.parametrize(
    ("who", "rule", "unread"),
    [
        (Who(1000, unread=NO_ENVIRONMENT), 1, ("partition",)),
        (Who(1, unread=NO_ENVIRONMENT), 3, ("environment",)),
        (Who(1, environment={}, unread=NO_POD), None, ()),  # a rule that pins
        (Who(1000, environment={}), None, ()),  # it has none, which is known
        (PROD, 2, ()),  # an earlier one is known to match
    ],
)
def test_a_process_that_an_unreadable_rule_may_leave_is_left(
    who: Who, rule: int | None, unread: tuple[str, ...]
) -> None:
    treatment = parse(LEAVES).treatment(who)
    assert (treatment.rule, treatment.unread, treatment.leave) == (rule, unread, bool(unread))


NAMING = """
rule = [
  { user = "alice", mode = "socket" },
  { cgroup = "/gpu.slice/*", user = "eve", leave = true },
  { cgroup = ["/gpu.slice/*", "*/gpu-?.scope"] },
]
"""
SLICE, SCOPE = "/gpu.slice/a", "/x/gpu-1.scope"


@pytest.mark.parametrize(
    ("who", "path", "may_name"),
    [
        (Who(cgroups=(SCOPE, SLICE)), SCOPE, True),
        (Who(cgroups=("/", "/other.slice/a")), None, False),
        (Who(user="eve", cgroups=(SLICE,)), None, True),  # the rule leaves it
        (Who(user="alice", cgroups=("/", SLICE)), SLICE, True),  # another says how it is treated
    ],
)
def test_a_cgroup_that_a_rule_names_is_a_job(who: Who, path: str | None, *, may_name: bool) -> None:
    policy = parse(NAMING)
    assert (policy.names_cgroup(who), policy.may_name(who.cgroups)) == (path, may_name)


def test_a_policy_lists_the_variables_of_its_rules() -> None:
    slurms = {f"SLURM_JOB_{name}" for name in ("PARTITION", "ACCOUNT", "USER")}
    assert parse(SITE).variables == slurms | {"TEAM", "SIZE"}


def test_cgroup_paths_are_unique_and_printable() -> None:
    text = "12:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/b:c (deleted)\n0::/\udcff\nnonsense\n"
    assert paths(text) == ("/a", "/b:c", "/\N{REPLACEMENT CHARACTER}")
    assert paths("0::/../../system.slice/x\n1:a:/..\n2:b:/..x/y\n") == ("/system.slice/x", "/..x/y")


RULE = "[[rule]]\n"
NO_EFFECT = "mode has no effect with leave = true; remove it, or write leave = false"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('mode = "nod"', f"mode: 'nod' is not one of {', '.join(MODES)}"),
        ("mode = 7", "mode: '7' is not one of all, "),
        ('share = "nodes"', "share: 'nodes' is not one of auto, requested, node"),
        ("min_physical_cores = 0", "min_physical_cores: '0' is not a whole number from 1 to"),
        ("cpus = 0", f"cpus: '0' is not a whole number from 1 to {2**31}, nor 'granted' or 'none'"),
        ("leave = 1", "leave: 1 is neither true nor false"),
        ('nics = "x"', "nics: 'x' is not one of ucx, "),
        ("memory = true", "memory: 'true' is not one of bind, none"),
        ('mod = "node"', "unknown 'mod'; did you mean mode?"),
        ('[rule]\nuser = "x"', "{'user': 'x'} is not a list of rules; write [[rule]], in two brac"),
        (RULE, f"rule 1: it selects nothing; give it one of {', '.join(KEYS)}"),
        (f"{RULE}uid = 0\n{RULE}partion = 1", "rule 2: unknown 'partion'; did you mean partition?"),
        ("mode = \n", "it is not TOML: Invalid value (at line 1, column 8)"),
        # A rule is told by what it asks first.
        (f"{RULE}mode = 7\npod = 'd'", "rule 1 (pod = 'd'): mode: '7' is not one of all, "),
        (f"{RULE}uid = [1, -3]", "rule 1 (uid = [1, -3]): uid: [1, -3] is no user's number, nor"),
        (f"{RULE}user = 7", "rule 1 (user = 7): user: 7 is no name or glob in quotes, nor a list"),
        (f"{RULE}user = []", "rule 1 (user = []): user: [] is no name or glob in quotes"),
        (f"{RULE}cgroup = 'a'", "rule 1 (cgroup = 'a'): cgroup: 'a' is no path of a cgroup; begin"),
        (f"{RULE}environment = 7", "rule 1 (environment = 7): environment: 7 is no table of var"),
        (f"{RULE}environment.'=' = 'x'", "rule 1 (environment = {'=': 'x'}): environment: {'=': "),
        (f"{RULE}uid = 7\nleave = true\nmode = 'all'", f"rule 1 (uid = [7]): {NO_EFFECT}"),
    ],
)
def test_an_error_names_its_rule_key_and_value_and_the_remedy(text: str, line: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert str(caught.value).startswith(line)
    assert is_one_short_line(caught.value)


ALL, EVEN = 'mode = "all"\n', 'mode = "even"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"{ALL}\n\n")
    return path


def opened(path: Path, *, is_optional: bool = False) -> PolicyFile:
    """Return a file that was named, or the one that need not be there."""
    return PolicyFile(os.fspath(path), parse=parse, is_optional=is_optional)


def modes(file: PolicyFile, looks: int = 1) -> list[str | None]:
    """Return the mode that counts at each look from now on; None: no policy does."""
    policies = [file.current() for _ in range(looks)]
    return [None if it is None else it.defaults.options.mode for it in policies]


def test_a_policy_file_applies_and_its_time_is_known(path: Path) -> None:
    path.write_bytes(
        b'\xef\xbb\xbf# ours\r\nmode = "all"\r\n[[rule]]\r\nuser = "bob"\nleave = true'
    )
    file = opened(path)
    assert file.state == PolicyState(file=str(path))
    before = time.time()
    policy = file.current()
    assert policy is not None
    assert [it.treatment.leave for it in policy.rules] == [True]
    state = file.state
    assert before <= (state.read or 0) <= time.time()
    assert state == PolicyState(str(path), state.read, rules=1)
    path.touch()
    assert (file.current() is policy, file.state) == (True, state)  # it is not parsed again


def write_anew(path: Path) -> None:
    new = path.with_name("new")
    new.write_text(EVEN)
    new.rename(path)


def test_a_changed_file_is_read_again_also_with_the_old_time_and_size(path: Path) -> None:
    file, stat = opened(path), path.stat()
    assert modes(file) == ["all"]
    path.write_text(EVEN.ljust(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert modes(file, 2) == ["all", "even"]
    assert file.state.error is None


def test_a_half_written_file_neither_applies_nor_is_an_error(path: Path) -> None:
    file = opened(path)
    policy, state = file.current(), file.state
    for part in ("", f"{EVEN}[[rule]]\nus", f'{EVEN}[[rule]]\nuser = "bob"\nleave = true\n', ALL):
        path.write_text(part)
        assert (file.current() is policy, file.state) == (True, state)


MISSPELLED = "[[rule]]\nuser = 'b'\nmod = 1"


@pytest.mark.parametrize("was_read", [True, False])
@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (str, "it cannot be read: No such file or directory"),
        (os.mkfifo, "it cannot be read: not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it cannot be read: not a regular file"),
        (lambda path: path.symlink_to(path), "it cannot be read: Too many levels of symbolic l"),
        (lambda path: path.write_text(MISSPELLED), "rule 1 (user = 'b'): unknown 'mod'"),
        (lambda path: path.write_bytes(b"#\n\n\xff"), "it is not UTF-8 (at line 3)"),
        (lambda path: path.write_text("#" * MAX_FILE + "#"), "it cannot be read: longer than 6553"),
    ],
)
def test_the_last_good_policy_stays_when_the_file_breaks(
    path: Path, harm: Callable[[Path], object], error: str, *, was_read: bool
) -> None:
    file = opened(path)
    policy, read = (file.current(), file.state.read) if was_read else (None, None)
    path.unlink()
    harm(path)
    file.current()
    for _ in range(3):
        assert file.current() is policy
        assert (file.state.error or "").startswith(error)
        assert file.state == PolicyState(str(path), read, error=file.state.error)
    write_anew(path)
    assert modes(file, 2)[1] == "even"
    assert file.state.error is None


def test_the_default_file_may_be_missing(path: Path) -> None:
    path.unlink()
    file = opened(path, is_optional=True)
    assert (file.current(), file.state) == (Policy(), PolicyState())
    path.write_text(ALL)
    assert modes(file, 2) == ["node", "all"]
    assert file.state.file == str(path)
    path.unlink()
    assert modes(file) == ["all"]
    path.write_text(EVEN)  # as an editor does
    assert modes(file, 2) == ["all", "even"]
    path.unlink()
    assert modes(file, 3) == ["even", "node", "node"]
    assert file.state == PolicyState()
    path.write_text("mode")
    broken = opened(path, is_optional=True)
    assert (broken.current(), broken.state.file) == (None, str(path))
