"""What a policy says of a process, and of a file that is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.policy_document import KEYS, PLANNED, SETTINGS, parse
from affinityd.enforce.policy.identity import ProcessIdentity as Who
from affinityd.enforce.policy.identity import paths
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

LEFT = {"leave": True}
RULE_2 = {"mode": "unique_contiguous", "share": "node"}
RULE_3 = {"mode": "socket", "min_physical_cores": 1}
BIG = {"TEAM": "vision-3", "SIZE": "7b"}


@pytest.mark.parametrize(
    ("who", "rule", "said"),
    [
        pytest.param(Who(), None, {}, id="nothing is known of it: the defaults"),
        pytest.param(Who(partition="debug"), 1, LEFT, id="a name"),
        pytest.param(Who(partition="interactive-2"), 1, LEFT, id="a glob of a list"),
        pytest.param(Who(partition="Debug"), None, {}, id="case matters"),
        pytest.param(Who(partition="debug2"), None, {}, id="a name is all of it"),
        pytest.param(Who(account="bio-1", user="bob"), 2, RULE_2, id="every key of a rule"),
        pytest.param(Who(account="bio-1", user="eve"), None, {}, id="one key of two is too few"),
        pytest.param(Who(account="bio-1"), None, {}, id="what is not known matches nothing"),
        pytest.param(Who(account="bio-12", user="bob"), None, {}, id="? is one character"),
        pytest.param(Who(1001, partition="debug"), 1, LEFT, id="the first that matches counts"),
        pytest.param(Who(namespace="ml-a", environment=BIG), 3, RULE_3, id="variables"),
        pytest.param(Who(namespace="ml-a", environment={"TEAM": "vision"}), None, {}, id="one"),
        pytest.param(Who(namespace="ml-a"), None, {}, id="an environment that cannot be read"),
        pytest.param(Who(1002), 4, {"mode": "all", "scope": "socket"}, id="a user's id"),
        pytest.param(Who(cgroups=("/", "/gpu.slice/a/b")), 5, {}, id="* goes through folders"),
        pytest.param(Who(cgroups=("/x/gpu.slice/a",)), None, {}, id="a path is all of it"),
        pytest.param(Who(pod="notebook-x"), 6, {"mode": "all"}, id="a pod"),
    ],
)
def test_the_first_rule_of_which_every_key_matches_says_how_a_process_is_treated(
    who: Who, rule: int | None, said: Mapping[str, object]
) -> None:
    def flat(treatment: Treatment) -> dict[str, object]:
        its = asdict(treatment)
        return {**its.pop("options"), **its}

    expected = {**flat(Treatment()), "min_physical_cores": 2, **said, "rule": rule}
    assert flat(parse(SITE).treatment(who)) == expected


def test_an_empty_file_has_the_defaults_alone() -> None:
    assert parse("") == Policy() == Policy(Treatment(), ())
    assert Policy().treatment(Who(uid=0)) == Treatment(Options("node"), "granted")


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
NO_POD = frozenset(("namespace", "pod"))
PROD = Who(1, namespace="prod", unread=NO_ENVIRONMENT)


@pytest.mark.parametrize(
    ("who", "rule", "unread"),
    [
        pytest.param(Who(1000, unread=NO_ENVIRONMENT), 1, ("partition",), id="it may be his"),
        pytest.param(Who(1, unread=NO_ENVIRONMENT), 3, ("environment",), id="or another's"),
        pytest.param(Who(1, environment={}, unread=NO_POD), None, (), id="a rule that pins"),
        pytest.param(Who(1000, environment={}), None, (), id="it has none, which is known"),
        pytest.param(PROD, 2, (), id="an earlier one is known to match"),
    ],
)
def test_a_process_that_a_rule_may_leave_if_more_was_known_is_left(
    who: Who, rule: int | None, unread: tuple[str, ...]
) -> None:
    treatment = parse(LEAVES).treatment(who)
    assert (treatment.rule, treatment.unread, treatment.leave) == (rule, unread, bool(unread))


def test_what_a_file_does_not_say_is_as_the_site_has_it() -> None:
    site = Treatment(Options("exclusive", scope="socket", balanced=False))
    found = parse('share = "node"\n[[rule]]\nuid = 0\nmode = "all"', site).treatment(Who())
    assert found == Treatment(Options("exclusive", share="node", scope="socket", balanced=False))
    assert parse("", site).treatment(Who()) == site


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ('scope = "socket"', "all"),
        ('scope = "socket"\nmode = "node"', "node"),
        ('mode = "exclusive"\n[[rule]]\nuid = 0\nscope = "socket"', "exclusive"),
        ('[[rule]]\nuid = 0\nscope = "socket"', "all"),
    ],
)
def test_a_scope_alone_is_that_of_all_cores(text: str, mode: str) -> None:
    assert parse(text).treatment(Who(uid=0)).options.mode == mode


def test_where_the_defaults_leave_only_what_a_rule_takes_is_pinned() -> None:
    policy = parse('leave = true\nmode = "all"\n[[rule]]\nuser = "bob"\nleave = false\n')
    assert policy.treatment(Who(user="eve")) == Treatment(Options("all"), leave=True)
    assert policy.treatment(Who(user="bob")) == Treatment(Options("all"), rule=1)


@pytest.mark.parametrize(
    ("glob", "text", "matches"),
    [
        ("*", "", True),
        ("a*", "a\nb", True),
        ("[!a]*", "a", False),
        ("[[]x]", "[x]", True),
        ("[z-a]", "z", False),
        ("[[a&&~~||--b", "[[a&&~~||--b", True),
        ("*a*a*a*a*a*a*a*a*a*a*a*b", "a" * 4000, False),
    ],
)
def test_a_glob_is_read_as_fnmatch_reads_it(glob: str, text: str, matches: bool) -> None:
    policy = parse(f"[[rule]]\nenvironment = {{ NAME = {json.dumps(glob)} }}")
    assert (policy.treatment(Who(environment={"NAME": text})).rule == 1) == matches


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
SLICE, SCOPE = "/gpu.slice/a", "/x/gpu-1.scope"


@pytest.mark.parametrize(
    ("user", "cgroups", "path", "may_name"),
    [
        (None, ("/", SLICE), SLICE, True),
        (None, (SCOPE, SLICE), SCOPE, True),
        (None, ("/", "/other.slice/a"), None, False),
        (None, (), None, False),
        ("eve", (SLICE,), None, True),  # the rule leaves it
        ("alice", (SLICE,), SLICE, True),  # another rule says how it is treated
    ],
)
def test_a_rule_that_names_a_cgroup_makes_it_a_job(
    user: str | None, cgroups: tuple[str, ...], path: str | None, may_name: bool
) -> None:
    policy = parse(NAMING)
    assert policy.names_cgroup(Who(user=user, cgroups=cgroups)) == path
    assert policy.may_name(cgroups) is may_name
    assert not Policy().may_name(cgroups)


def test_a_policy_says_which_variables_it_asks_for() -> None:
    slurms = {f"SLURM_JOB_{name}" for name in ("PARTITION", "ACCOUNT", "USER")}
    assert parse(SITE).variables == slurms | {"TEAM", "SIZE"}
    assert Policy().variables == frozenset()


def test_a_cgroups_paths_are_told_once_and_fit_for_people() -> None:
    text = "12:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/b:c (deleted)\n0::/\udcff\nnonsense\n"
    assert paths(text) == ("/a", "/b:c", "/\N{REPLACEMENT CHARACTER}")
    assert paths("") == ()
    assert paths("0::/../../system.slice/x\n1:a:/..\n2:b:/..x/y\n") == ("/system.slice/x", "/..x/y")


TREE = "{'a': {'a': {'a': {'a': {'a': {'a': {...}}}}}}}"
TWO_RULES = '[[rule]]\nuser = "x"\n[[rule]]\npartion = "x"'


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('mode = "nod"', "mode: 'nod': it is not a mode; did you mean node?"),
        ("mode = 7", f"mode: 7: it is not a mode; known are {', '.join(MODES)}"),
        (f"mode = 0x{'f' * 4000}", "mode: a huge number: "),
        (f"mode.{'.'.join('a' * 200)} = 1", f"mode: {TREE}: it is not a mode"),
        ('share = "nodes"', "share: 'nodes': it should be 'auto', 'requested' or 'node'"),
        ('scope = "package"', "scope: 'package': it should be 'node' or 'socket'"),
        *(
            (f"min_physical_cores = {it}", f"min_physical_cores: {it}: it should be {right}")
            for it, right in (("true", "a whole"), (0, "greater than or equal to 1"), (1.5, "a wh"))
        ),
        ("cpus = 0", "cpus: 0: it should be a number of CPUs from 1 on, 'granted' or 'none'"),
        ("leave = 1", "leave: 1: it should be true or false"),
        ('mod = "node"', "unknown 'mod'; did you mean mode?"),
        ('"a\\nb" = 1', f"unknown 'a\\nb'; known are rule, {', '.join(SETTINGS)}"),
        ('user = "x"', "user selects processes; write it below a line [[rule]]"),
        (
            '[rule]\nuser = "x"',
            "{'user': 'x'} is not a list of rules; write [[rule]], in two bracket",
        ),
        ("[[rule]]", f"rule 1: it selects nothing; give it one of {', '.join(KEYS)}"),
        (TWO_RULES, "rule 2: unknown 'partion'; did you mean partition?"),
        ("mode = \n", "it is not TOML: Invalid value (at line 1, column 8)"),
        (f"mode = {'[' * 4000}", "it is nested too deeply"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_what_would_be_right(text: str, line: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert str(caught.value).startswith(line)
    assert is_one_short_line(caught.value)


@pytest.mark.parametrize(
    ("text", "first", "line"),
    [
        (f'user = "{"x" * 257}"', "user = 'xxxxxxxx", ""),
        (
            'mode = "nod"\npod = "d"',
            "pod = 'd'",
            "mode: 'nod': it is not a mode; did you mean node?",
        ),
        ("uid = [1, -3]", "uid = [1, -3]", "uid: -3: it should be greater than or equal to 0"),
        ("uid = 4294967295", "uid = 4294967295", "uid: 4294967295: it should be less than or eq"),
        ("user = 1000", "user = 1000", "user: 1000: it should be a name or a glob in quotes"),
        ('user = ["a", ["b"]]', "user = ['a', ['b']]", "user: ['b']: it should be a name"),
        (
            "user = []",
            "user = []",
            "user: []: it is empty, which matches no process; remove the key",
        ),
        ("user = ['']", "user = ['']", "user: '': it is empty; write a name"),
        ('cgroup = "a/*"', "cgroup = 'a/*'", "cgroup: 'a/*': it is not a path of a cgroup"),
        ('environment = "A"', "environment = 'A'", "environment: 'A': it should be a table of"),
        ("environment = {}", "environment = {}", "environment: {}: it is empty"),
        (
            *('environment."A=B" = "x"', "environment = {'A=B': 'x'}"),
            "environment.A=B: 'A=B': a variable's name has",
        ),
        ("environment.A = 1", "environment = {'A': 1}", "environment.A: 1: it should be a name"),
        (
            *('user = "x"\nleave = true\nscope = "node"', "user = ['x']"),
            "scope has no effect with leave = true; write leave = false",
        ),
    ],
)
def test_what_is_wrong_in_a_rule_is_told_by_what_it_asks_first(
    text: str, first: str, line: str
) -> None:
    with pytest.raises(PolicyError) as caught:
        parse(f"[[rule]]\n{text}")
    assert str(caught.value).startswith(f"rule 1 ({first}{f'): {line}' if line else ''}")
    assert is_one_short_line(caught.value)


def test_a_setting_of_a_rule_that_leaves_as_the_defaults_do_is_of_no_use() -> None:
    why = r"rule 1 \(user = \['x'\]\): mode has no effect with leave = true; write leave = false"
    with pytest.raises(PolicyError, match=why):
        parse('leave = true\n[[rule]]\nuser = "x"\nmode = "all"')


def test_what_a_file_may_say_is_what_there_is_to_be_said() -> None:
    assert {*PLANNED} < {field.name for field in fields(Options)}
    its = {field.name for field in fields(Treatment)}
    assert {*SETTINGS, "rule", "unread", "options"} == its.union(PLANNED)
    assert {*NAMED} < {field.name for field in fields(Who)}


QUOTED = st.text(max_size=6) | st.sampled_from([*MODES, "auto", "/x*", "[z-a]"])
WORDS = st.sampled_from([*KEYS, *SETTINGS, "rule", "A", "partion"]) | st.text(max_size=4)
NAMES = WORDS.map(json.dumps)
BARE = st.sampled_from(["true", "false", "nan", "-inf", "1979-05-27", "07:32:00", "0xffff"])


def _tables(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pairs = st.dictionaries(NAMES, inner, max_size=3)
    lists = st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    return lists | pairs.map(
        lambda table: f"{{{', '.join(f'{name} = {value}' for name, value in table.items())}}}"
    )


SCALARS = BARE | st.integers().map(str) | QUOTED.map(json.dumps)
VALUES = st.recursive(SCALARS, _tables, max_leaves=6)
HEADS = ["[[rule]]", "[rule]", "[[rule.environment]]", "[rule.environment]", "[A]"]
LINES = st.tuples(NAMES, VALUES).map(" = ".join) | st.sampled_from(HEADS)


def try_to_parse(text: str) -> Policy | PolicyError:
    try:
        return parse(text)
    except PolicyError as error:
        return error


@given(st.lists(LINES, max_size=8).map("\n".join) | st.text())
def test_whatever_is_written_is_a_policy_or_an_error_of_one_line(text: str) -> None:
    who = Who(uid=0, user="x", cgroups=("/x",), environment={"A": "x"})
    read = try_to_parse(text)
    if isinstance(read, PolicyError):
        assert is_one_short_line(read)
    else:
        assert read.treatment(who).options.mode in MODES
        assert read.names_cgroup(who) in {None, "/x"}
