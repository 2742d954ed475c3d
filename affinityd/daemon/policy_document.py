"""A policy's file as a document: its keys and values, and the errors in them."""

from __future__ import annotations

import difflib
import logging
import reprlib
import sys
from collections.abc import Collection, Container, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from affinityd.client.apply import nic_libraries
from affinityd.cpuset import several
from affinityd.enforce.policy import (
    NAMED,
    NODE,
    NamePatterns,
    Policy,
    PolicyError,
    PolicyState,
    Rule,
    Treatment,
)
from affinityd.errors import InvalidRequestError
from affinityd.planner.modes import MODES
from affinityd.request.parameters import MAX_NUMBER
from affinityd.text import count, one_line, quote

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

#: Keys that match a process's environment, which takes privileges to read.
OF_ENVIRONMENTS = ("partition", "account", "environment")

#: Settings that are not printed by name and value.
OF_THEIR_OWN = ("mode", "observe", "leave")

MAX_UID = 2**32 - 2  #: the last number means no user, chown(2)
MAX_NAME = 256  #: characters: a glob of many stars takes its time

#: Kind of an error → the right value, in words of TOML rather than of Python.
RIGHT = {
    "string_type": "it should be a name or a glob in quotes",
    "int_type": "it should be a whole number",
    "bool_type": "it should be true or false",
    "dict_type": "it should be a table of variables, like { TEAM = 'vision*' }",
    "too_short": "it is empty, which matches no process; remove the key",
    "string_too_short": "it is empty; write a name, or a glob like '*'",
}


def _listed(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _mode(value: object) -> object:
    name = value.replace("-", "_") if isinstance(value, str) else ""
    if name not in MODES:
        raise ValueError(f"it is not a mode; {_suggestion(str(value), MODES)}")
    return name


def _cpus(value: object) -> object:
    if value not in ("granted", "none") and (
        type(value) is not int or value not in range(1, MAX_NUMBER + 1)
    ):
        raise ValueError("it should be a number of CPUs from 1 on, 'granted' or 'none'")
    return value


def _nics(names: str) -> str:
    try:
        nic_libraries(names)
    except InvalidRequestError as error:
        raise ValueError(str(error).removeprefix("nics: ")) from None
    return names


def _cgroup(path: str) -> str:
    if path[0] not in "/*?[":
        raise ValueError("it is not a path of a cgroup; begin it with / or *")
    return path


def _variable(name: str) -> str:
    if "=" in name:
        raise ValueError("a variable's name has no = in it")
    return name


OneOrMore = Annotated[list[T], BeforeValidator(_listed), Field(min_length=1)]
Text = Annotated[str, Field(max_length=MAX_NAME)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
Path = Annotated[Name, AfterValidator(_cgroup)]
UserId = Annotated[int, Field(ge=0, le=MAX_UID)]
Variable = Annotated[Name, AfterValidator(_variable)]


class PolicySettings(BaseModel):
    """How processes are treated; None: as the top level, or the site, has it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    mode: Annotated[str | None, BeforeValidator(_mode)] = None
    share: Literal["auto", "requested", "node"] | None = None
    scope: Literal["node", "socket"] | None = None
    min_physical_cores: Annotated[int, Field(ge=1, le=MAX_NUMBER)] | None = None
    cpus: Annotated[int | str | None, BeforeValidator(_cpus)] = None
    observe: bool | None = None
    leave: bool | None = None
    # Of containers as they are created, by NRI.
    nics: Annotated[str | None, AfterValidator(_nics)] = None
    memory: Literal["bind", "none"] | None = None
    without_request: Literal["share", "keep"] | None = None


class RuleTable(PolicySettings):
    """Conditions on processes, and their treatment; None: any value."""

    partition: OneOrMore[Name] | None = None
    account: OneOrMore[Name] | None = None
    user: OneOrMore[Name] | None = None
    namespace: OneOrMore[Name] | None = None
    pod: OneOrMore[Name] | None = None
    uid: OneOrMore[UserId] | None = None
    cgroup: OneOrMore[Path] | None = None
    environment: Annotated[dict[Variable, OneOrMore[Text]], Field(min_length=1)] | None = None


class PolicyTable(PolicySettings):
    """The whole file."""

    rule: list[RuleTable] = []


SETTINGS = tuple(PolicySettings.model_fields)
PLANNED = ("mode", "share", "scope", "min_physical_cores")  #: of these, `Treatment.options`
KEYS = tuple(name for name in RuleTable.model_fields if name not in SETTINGS)


def parse(text: str, site: Treatment = NODE) -> Policy:
    """Read a policy's file; `site` has the defaults. Raises PolicyError."""
    table = document(text)
    defaults = _treatment(table, site)
    return Policy(
        defaults, tuple(_rule(number, rule, defaults) for number, rule in enumerate(table.rule, 1))
    )


def document(text: str) -> PolicyTable:
    """Return the content of a policy's file.

    Raises PolicyError, one line: the rule, its key and value, or TOML's line and column.
    """
    try:
        tables = tomllib.loads(text)
        return PolicyTable.model_validate(tables)
    except ValidationError as errors:
        raise PolicyError(one_line(_line(errors.errors()[0], tables))) from None
    except ValueError as error:
        raise PolicyError(f"it is not TOML: {one_line(str(error))}") from None
    except RecursionError:
        raise PolicyError("it is nested too deeply") from None


def _treatment(settings: PolicySettings, before: Treatment) -> Treatment:
    """Return a treatment with these fields; the mode `node` is one node, for any scope."""
    values = settings.model_dump(include={*SETTINGS}, exclude_none=True)
    planned = {name: values.pop(name) for name in PLANNED if name in values}
    if "scope" in planned and "mode" not in planned and before.options.mode == NODE.options.mode:
        planned["mode"] = "all"
    return replace(before, options=replace(before.options, **planned), **values)


def _rule(number: int, table: RuleTable, defaults: Treatment) -> Rule:
    treatment = replace(_treatment(table, defaults), rule=number)
    values = table.model_dump(exclude_none=True)
    if values.keys().isdisjoint(KEYS):
        raise PolicyError(f"rule {number}: it selects nothing; give it one of {', '.join(KEYS)}")
    unused = [name for name in SETTINGS if name in values and name != "leave"]
    if treatment.leave and unused:
        where, name = f"rule {number}{_first_key(values)}", unused[0]
        why = "has no effect with leave = true; remove it, or write leave = false"
        raise PolicyError(one_line(f"{where}: {name} {why}"))
    conditions: dict[str, Container[Any]] = {
        k: NamePatterns(values[k]) for k in NAMED if k in values
    }
    if table.uid is not None:
        conditions["uid"] = frozenset(table.uid)
    return Rule(
        treatment,
        conditions,
        cgroup=NamePatterns(table.cgroup) if table.cgroup else None,
        environment={
            key: NamePatterns(globs) for key, globs in values.get("environment", {}).items()
        },
    )


def _line(error: ErrorDetails, tables: Mapping[str, Any]) -> str:
    """Return the place of an error, the wrong value, and the remedy."""
    place, rule, keys = list(error["loc"]), "", ("rule", *SETTINGS)
    match place:
        case ["rule", int(index), *in_rule] if in_rule:
            rule = f"rule {index + 1}{_first_key(tables['rule'][index])}: "
            place, keys = in_rule, (*KEYS, *SETTINGS)
    name = ".".join(part for part in place if isinstance(part, str) and part != "[key]")
    if name == "rule":
        return (
            f"{shown(tables['rule'])} is not a list of rules; write [[rule]], in two "
            "brackets, above each"
        )
    if error["type"] == "extra_forbidden" and name in KEYS:
        return f"{name} selects processes; write it below a line [[rule]]"
    if error["type"] == "extra_forbidden":
        return f"{rule}unknown {quote(name)}; {_suggestion(name, keys)}"
    why = error.get("ctx", {}).get("error") or error["msg"].replace("Input", "it", 1)
    return f"{rule}{name}: {shown(error['input'])}: {RIGHT.get(error['type'], why)}"


def _first_key(table: Mapping[str, object]) -> str:
    return next((f" ({key} = {shown(it)})" for key, it in table.items() if key in KEYS), "")


def shown(value: object) -> str:
    """Return a value of any kind as a message shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return quote(value) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:  # more digits than Python writes
        return "a huge number"


def _suggestion(name: str, keys: Collection[str]) -> str:
    near = difflib.get_close_matches(name[:64], keys, n=1)
    alike = [key for key in keys if name and name in key] or near
    return f"did you mean {' or '.join(alike)}?" if alike else f"known are {', '.join(keys)}"


def described(text: str) -> list[str]:
    """Return lines that tell what a policy matches and does. Raises PolicyError."""
    parse(text)
    table = document(text).model_dump(exclude_none=True)
    rules = table["rule"]
    lines = [count(len(rules), "rule")]
    for number, rule in enumerate(rules, start=1):
        matched = " and ".join(_matched(key, rule[key]) for key in KEYS if key in rule)
        lines.append(f"rule {number}: {matched}: {_done({**table, **rule})}")
    lines.append(f"{'all others' if rules else 'all jobs'}: {_done(table)}")
    asking = [n for n, rule in enumerate(rules, 1) if not rule.keys().isdisjoint(OF_ENVIRONMENTS)]
    if asking:
        needs = "environments must be readable: the daemon needs CAP_SYS_PTRACE and "
        lines.append(f"note: for {several('rule', asking)} {needs}CAP_DAC_READ_SEARCH")
    return lines


def _matched(key: str, value: Mapping[str, list[object]] | list[object]) -> str:
    """Return the condition of a key: `account 'debug' or 'bench-*'`."""
    if isinstance(value, Mapping):
        return " and ".join(_matched(f"{key} {name}", globs) for name, globs in value.items())
    return f"{key} {' or '.join(map(shown, value))}"


def _done(settings: Mapping[str, Any]) -> str:
    if settings.get("leave"):
        return "left alone"
    mode = settings.get("mode")
    others = [name for name in SETTINGS if name in settings and name not in OF_THEIR_OWN]
    parts = [f"{name} {settings[name]}" for name in others]
    parts += ["only observed"] if settings.get("observe") else []
    return ", ".join([f"mode {mode}" if mode else "the site's mode", *parts])


def policy_news(before: PolicyState, now: PolicyState) -> Iterator[tuple[int, str]]:
    """Yield the log's lines about a policy's file after a look at it, each with its level."""
    if now.error is not None and now.error != before.error:
        nothing, old = "nothing is pinned until it is correct", "the last good one applies"
        stands = nothing if now.read is None else old
        yield logging.WARNING, f"the policy {now.file} has an error: {now.error}; {stands}"
    elif now.error is None and before.file is not None and now.file is None:
        yield logging.INFO, f"the policy {before.file} was removed: the defaults apply"
    elif now.error is None and now.file is not None and now != before:
        yield logging.INFO, f"the policy {now.file} applies, with {count(now.rules, 'rule')}"
