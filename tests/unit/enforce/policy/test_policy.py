"""What a policy says of a process, and of a file that is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.policy_document import KEYS, PLANNED, SETTINGS, parse
from affinityd.enforce.policy.identity import ProcessIdentity, paths
from affinityd.enforce.policy.model import Treatment
from affinityd.enforce.policy.policy import NAMED, Policy, PolicyError
from affinityd.planner.model import Options
from affinityd.planner.modes import MODES
from tests.support.asking import is_one_short_line

SITE = """
mode = "node"
min_physical_cores = 2

[[rule]]                    # 1
partition = ["debug", "interactive*"]
leave = true

[[rule]]                    # 2
account = "bio-?"
user = ["alice", "bob"]
mode = "unique-contiguous"
share = "node"

[[rule]]                    # 3
namespace = "ml-*"
environment = { TEAM = "vision*", SIZE = ["big", "[0-9]*"] }
mode = "socket"
min_physical_cores = 1

[[rule]]                    # 4
uid = [1001, 1002]
scope = "socket"

[[rule]]                    # 5
cgroup = "/gpu.slice/*"

[[rule]]                    # 6
pod = "notebook-*"
mode = "all"
"""

DEFAULTS = {"min_physical_cores": 2}


@pytest.mark.parametrize(
    ("about", "rule", "said"),
    [
        pytest.param(ProcessIdentity(), None, {}, id="nothing is known of it: the defaults"),
        pytest.param(ProcessIdentity(partition="debug"), 1, {"leave": True}, id="a name"),
        pytest.param(
            ProcessIdentity(partition="interactive-2"), 1, {"leave": True}, id="a glob of a list"
        ),
        pytest.param(ProcessIdentity(partition="Debug"), None, {}, id="case matters"),
        pytest.param(ProcessIdentity(partition="debug2"), None, {}, id="a name is all of it"),
        pytest.param(
            ProcessIdentity(account="bio-1", user="bob"),
            2,
            {"mode": "unique_contiguous", "share": "node"},
            id="every key of a rule",
        ),
        pytest.param(
            ProcessIdentity(account="bio-1", user="eve"), None, {}, id="one key of two is too few"
        ),
        pytest.param(
            ProcessIdentity(account="bio-1"), None, {}, id="what is not known matches nothing"
        ),
        pytest.param(
            ProcessIdentity(account="bio-12", user="bob"), None, {}, id="? is one character"
        ),
        pytest.param(
            ProcessIdentity(partition="debug", account="bio-1", user="bob"),
            1,
            {"leave": True},
            id="the first rule that matches counts",
        ),
        pytest.param(
            ProcessIdentity(namespace="ml-a", environment={"TEAM": "vision-3", "SIZE": "7b"}),
            3,
            {"mode": "socket", "min_physical_cores": 1},
            id="variables",
        ),
        pytest.param(
            ProcessIdentity(namespace="ml-a", environment={"TEAM": "vision-3"}),
            None,
            {},
            id="one is not set",
        ),
        pytest.param(
            ProcessIdentity(namespace="ml-a"), None, {}, id="an environment that cannot be read"
        ),
        pytest.param(
            ProcessIdentity(uid=1002), 4, {"mode": "all", "scope": "socket"}, id="a user's id"
        ),
        pytest.param(ProcessIdentity(uid=1003), None, {}, id="another user's id"),
        pytest.param(
            ProcessIdentity(cgroups=("/", "/gpu.slice/a/b")), 5, {}, id="* goes through folders"
        ),
        pytest.param(
            ProcessIdentity(cgroups=("/x/gpu.slice/a",)), None, {}, id="a path is all of it"
        ),
        pytest.param(ProcessIdentity(pod="notebook-x"), 6, {"mode": "all"}, id="a pod"),
    ],
)
def test_the_first_rule_of_which_every_key_matches_says_how_a_process_is_treated(
    about: ProcessIdentity, rule: int | None, said: Mapping[str, object]
) -> None:
    expected = {**flat(Treatment()), **DEFAULTS, **said, "rule": rule}
    assert flat(parse(SITE).treatment(about)) == expected


def flat(treatment: Treatment) -> dict[str, object]:
    """Return a treatment's settings by name, as a file has them."""
    its = asdict(treatment)
    return {**its.pop("options"), **its}


def test_an_empty_file_has_the_defaults_alone() -> None:
    assert parse("") == Policy() == Policy(Treatment(), ())
    assert Policy().treatment(ProcessIdentity(uid=0)) == Treatment(Options("node"), "granted")


LEAVES = """
[[rule]]
partition = "debug"
uid = 1000
leave = true
[[rule]]
namespace = "prod"
mode = "all"
[[rule]]
environment = { TIER = "gold" }
leave = true
"""
NO_ENVIRONMENT = frozenset(("partition", "account", "user", "environment"))


@pytest.mark.parametrize(
    ("about", "rule", "unread"),
    [
        pytest.param(
            ProcessIdentity(uid=1000, unread=NO_ENVIRONMENT), 1, ("partition",), id="it may be his"
        ),
        pytest.param(
            ProcessIdentity(uid=1, unread=NO_ENVIRONMENT),
            3,
            ("environment",),
            id="it is another's at least",
        ),
        pytest.param(
            ProcessIdentity(uid=1, environment={}, unread=frozenset(("namespace", "pod"))),
            None,
            (),
            id="a rule that leaves nobody is passed over",
        ),
        pytest.param(
            ProcessIdentity(uid=1000, environment={}), None, (), id="it has none, which is known"
        ),
        pytest.param(
            ProcessIdentity(uid=1, namespace="prod", unread=NO_ENVIRONMENT),
            2,
            (),
            id="an earlier one is known to match",
        ),
    ],
)
def test_whom_a_rule_may_leave_if_one_only_knew_is_left(
    about: ProcessIdentity, rule: int | None, unread: tuple[str, ...]
) -> None:
    treatment = parse(LEAVES).treatment(about)
    assert (treatment.rule, treatment.unread) == (rule, unread)
    assert treatment.leave is bool(unread)


def test_what_a_file_does_not_say_is_as_the_site_has_it() -> None:
    site = Treatment(Options("exclusive", scope="socket", balanced=False))
    treatment = parse('share = "node"\n[[rule]]\nuid = 0\nmode = "all"', site).treatment(
        ProcessIdentity()
    )
    expected = Options("exclusive", share="node", scope="socket", balanced=False)
    assert treatment == Treatment(expected)
    assert parse("", site).treatment(ProcessIdentity()) == site


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('scope = "socket"', "all"),
        ('scope = "socket"\nmode = "node"', "node"),
        ('scope = "socket"\nmode = "exclusive"', "exclusive"),
        ('mode = "exclusive"\n[[rule]]\nuid = 0\nscope = "socket"', "exclusive"),
        ('[[rule]]\nuid = 0\nscope = "socket"', "all"),
    ],
)
def test_a_scope_alone_is_that_of_all_cores(text: str, mode: str) -> None:
    assert parse(text).treatment(ProcessIdentity(uid=0)).options.mode == mode


def test_where_the_defaults_leave_only_what_a_rule_takes_is_pinned() -> None:
    policy = parse('leave = true\nmode = "all"\n[[rule]]\nuser = "bob"\nleave = false\n')
    assert policy.treatment(ProcessIdentity(user="eve")) == Treatment(Options("all"), leave=True)
    assert policy.treatment(ProcessIdentity(user="bob")) == Treatment(Options("all"), rule=1)


@pytest.mark.parametrize(
    ("glob", "text", "matches"),
    [
        ("*", "", True),
        ("a*", "a\nb", True),
        ("[!a]*", "b", True),
        ("[!a]*", "a", False),
        ("[[]x]", "[x]", True),
        ("[x", "[x", True),
        ("[z-a]", "z", False),
        ("[[a&&~~||--b", "[[a&&~~||--b", True),
        ("*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 4000, False),
    ],
)
def test_a_glob_is_read_as_fnmatch_reads_it(glob: str, text: str, matches: bool) -> None:
    policy = parse(f"[[rule]]\nenvironment = {{ NAME = {json.dumps(glob)} }}")
    assert (policy.treatment(ProcessIdentity(environment={"NAME": text})).rule == 1) == matches


NAMING = """
[[rule]]
user = "alice"
mode = "socket"

[[rule]]
cgroup = "/gpu.slice/*"
user = "eve"
leave = true

[[rule]]
cgroup = ["/gpu.slice/*", "*/gpu-?.scope"]
"""


@pytest.mark.parametrize(
    ("about", "path"),
    [
        pytest.param(
            ProcessIdentity(cgroups=("/", "/gpu.slice/a")), "/gpu.slice/a", id="the one it names"
        ),
        pytest.param(
            ProcessIdentity(cgroups=("/x/gpu-1.scope", "/gpu.slice/a")),
            "/x/gpu-1.scope",
            id="the first",
        ),
        pytest.param(
            ProcessIdentity(cgroups=("/", "/other.slice/a")), None, id="none that a rule names"
        ),
        pytest.param(ProcessIdentity(), None, id="none at all"),
        pytest.param(
            ProcessIdentity(user="eve", cgroups=("/gpu.slice/a",)), None, id="the rule leaves it"
        ),
        pytest.param(
            ProcessIdentity(user="alice", cgroups=("/gpu.slice/a",)),
            "/gpu.slice/a",
            id="another rule says how it is treated",
        ),
    ],
)
def test_a_rule_that_names_a_cgroup_makes_it_a_job(
    about: ProcessIdentity, path: str | None
) -> None:
    policy = parse(NAMING)
    assert policy.names_cgroup(about) == path
    assert path is None or policy.may_name(about.cgroups)


def test_whom_no_rule_names_by_its_cgroup_nobody_has_to_look_at() -> None:
    policy = parse(NAMING)
    assert policy.may_name(("/", "/gpu.slice/of-whomever"))
    assert not policy.may_name(("/", "/user.slice/x"))
    assert not Policy().may_name(("/",))


def test_a_policy_says_which_variables_it_asks_for() -> None:
    assert parse(SITE).variables == {
        "SLURM_JOB_PARTITION",
        "SLURM_JOB_ACCOUNT",
        "SLURM_JOB_USER",
        "TEAM",
        "SIZE",
    }
    assert Policy().variables == frozenset()


def test_a_cgroups_paths_are_told_once_and_fit_for_people() -> None:
    text = "12:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/b:c (deleted)\n0::/\udcff\nnonsense\n"
    assert paths(text) == ("/a", "/b:c", "/\N{REPLACEMENT CHARACTER}")
    assert paths("") == ()
    assert paths("0::/../../system.slice/x\n1:a:/..\n2:b:/..x/y\n") == ("/system.slice/x", "/..x/y")


MODE_NAMES = ", ".join(MODES)
KEY_NAMES = ", ".join(KEYS)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('mode = "nod"', "mode: 'nod': it is no mode; did you mean node?"),
        (f'[[rule]]\nuser = "{"x" * 257}"', "rule 1 (user = 'xxxx"),
        ("mode = 7", f"mode: 7: it is no mode; known are {MODE_NAMES}"),
        ("mode = 1979-05-27", "mode: datetime.date(1979, 5, 27): it is no mode; known are"),
        (f"mode = 0x{'f' * 4000}", "mode: a huge number: "),
        (
            f"mode.{'.'.join('a' * 200)} = 1",
            "mode: {'a': {'a': {'a': {'a': {'a': {'a': {...}}}}}}}: it is no mode",
        ),
        ('share = "nodes"', "share: 'nodes': it should be 'auto', 'requested' or 'node'"),
        ('scope = "package"', "scope: 'package': it should be 'node' or 'socket'"),
        ("min_physical_cores = true", "min_physical_cores: true: it should be a whole number"),
        (
            "min_physical_cores = 0",
            "min_physical_cores: 0: it should be greater than or equal to 1",
        ),
        ("min_physical_cores = 1.5", "min_physical_cores: 1.5: it should be a whole number"),
        (
            "cpus = 0",
            "cpus: 0: it should be a number of CPUs from 1 on, 'granted' or 'none'",
        ),
        ("leave = 1", "leave: 1: it should be true or false"),
        ('mod = "node"', "unknown 'mod'; did you mean mode?"),
        ("rules = []", "unknown 'rules'; did you mean rule?"),
        ('"a\\nb" = 1', f"unknown 'a\\nb'; known are rule, {', '.join(SETTINGS)}"),
        ('user = "x"', "user asks which process it is; write it below a line [[rule]]"),
        (
            '[rule]\nuser = "x"',
            "{'user': 'x'} is no list of rules; write [[rule]], in two brackets, above each",
        ),
        ("rule = [1]", "[1] is no list of rules; write [[rule]]"),
        ("[[rule]]", f"rule 1: it asks nothing; give it one of {KEY_NAMES}"),
        (
            '[[rule]]\nuser = "x"\n[[rule]]\npartion = "x"',
            "rule 2: unknown 'partion'; did you mean partition?",
        ),
        (
            '[[rule]]\nmode = "nod"\npartition = "debug"',
            "rule 1 (partition = 'debug'): mode: 'nod': it is no mode; did you mean node?",
        ),
        ("[[rule]]\nuid = true", "rule 1 (uid = true): uid: true: it should be a whole number"),
        (
            "[[rule]]\nuid = [1, -3]",
            "rule 1 (uid = [1, -3]): uid: -3: it should be greater than or equal to 0",
        ),
        (
            "[[rule]]\nuid = 4294967295",
            "rule 1 (uid = 4294967295): uid: 4294967295: it should be less than or equal to",
        ),
        (
            "[[rule]]\nuser = 1000",
            "rule 1 (user = 1000): user: 1000: it should be a name or a glob in quotes",
        ),
        (
            '[[rule]]\nuser = ["a", ["b"]]',
            "rule 1 (user = ['a', ['b']]): user: ['b']: it should be a name",
        ),
        (
            "[[rule]]\nuser = []",
            "rule 1 (user = []): user: []: it is empty, which matches no process; take",
        ),
        ("[[rule]]\nuser = ['']", "rule 1 (user = ['']): user: '': it is empty; write a name"),
        (
            '[[rule]]\ncgroup = "gpu.slice/*"',
            "rule 1 (cgroup = 'gpu.slice/*'): cgroup: 'gpu.slice/*': it is no path of a cgroup",
        ),
        (
            '[[rule]]\nenvironment = "TEAM"',
            "rule 1 (environment = 'TEAM'): environment: 'TEAM': it should be a table of",
        ),
        ("[[rule]]\nenvironment = {}", "rule 1 (environment = {}): environment: {}: it is empty"),
        (
            '[[rule]]\nenvironment."A=B" = "x"',
            "rule 1 (environment = {'A=B': 'x'}): environment.A=B: 'A=B': no variable's name has",
        ),
        (
            "[[rule]]\nenvironment.A = 1",
            "rule 1 (environment = {'A': 1}): environment.A: 1: it should be a name",
        ),
        (
            '[[rule]]\nuser = "x"\nleave = true\nscope = "node"',
            "rule 1 (user = ['x']): scope is of no use where leave is true; write leave = false",
        ),
        (
            'leave = true\n[[rule]]\nuser = "x"\nmode = "all"',
            "rule 1 (user = ['x']): mode is of no use where leave is true; write leave = false",
        ),
        ("mode = \n", "it is no TOML: Invalid value (at line 1, column 8)"),
        ('mode = "a"\nmode = "b"\n', "it is no TOML: Cannot overwrite a value (at line 2, column"),
        (f"mode = {'[' * 4000}", "it is nested too deeply for TOML to be read"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_would_be_right(text: str, line: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert str(caught.value).startswith(line)
    assert is_one_short_line(caught.value)


def test_what_a_file_may_say_is_what_there_is_to_be_said() -> None:
    assert {*PLANNED} < {field.name for field in fields(Options)}
    its = {field.name for field in fields(Treatment)}
    assert {*SETTINGS, "rule", "unread", "options"} == its.union(PLANNED)
    assert {*NAMED} < {field.name for field in fields(ProcessIdentity)}


def try_to_parse(text: str) -> Policy | PolicyError:
    try:
        return parse(text)
    except PolicyError as error:
        return error


NAMES = st.one_of(
    st.sampled_from([*KEYS, *SETTINGS, "rule", "A", "partion"]), st.text(max_size=4)
).map(json.dumps)
SCALARS = st.one_of(
    st.sampled_from(["true", "false", "nan", "-inf", "1979-05-27", "07:32:00", "0xffff"]),
    st.integers().map(str),
    st.one_of(st.sampled_from([*MODES, "auto", "/x*", "[z-a]"]), st.text(max_size=6)).map(
        json.dumps
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(NAMES, inner, max_size=3).map(
            lambda table: f"{{{', '.join(f'{name} = {value}' for name, value in table.items())}}}"
        ),
    ),
    max_leaves=6,
)
LINES = st.one_of(
    st.tuples(NAMES, VALUES).map(" = ".join),
    st.sampled_from(["[[rule]]", "[rule]", "[[rule.environment]]", "[rule.environment]", "[A]"]),
)


@given(st.one_of(st.lists(LINES, max_size=8).map("\n".join), st.text()))
def test_whatever_is_written_is_a_policy_or_an_error_of_one_line(text: str) -> None:
    about = ProcessIdentity(uid=0, user="x", cgroups=("/x",), environment={"A": "x"})
    read = try_to_parse(text)
    if isinstance(read, PolicyError):
        assert is_one_short_line(read)
    else:
        assert read.treatment(about).options.mode in MODES
        assert read.names_cgroup(about) in {None, "/x"}
