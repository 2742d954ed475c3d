"""A policy's file as a document: its keys and values, and the errors in them."""

from __future__ import annotations

import logging
import reprlib
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any

from affinityd.client.apply import nic_libraries
from affinityd.cpuset import several
from affinityd.enforce.policy import (
    GRANTED,
    NAMED,
    NODE,
    NOTHING,
    NamePatterns,
    Policy,
    PolicyError,
    PolicyState,
    Rule,
    Treatment,
)
from affinityd.errors import InvalidRequestError
from affinityd.request.parameters import PARAMETERS, one_of, suggestion
from affinityd.text import count, one_line, quote

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: Keys that match a process's environment, which takes privileges to read.
OF_ENVIRONMENTS = ("partition", "account", "environment")

#: Settings that are not printed by name and value.
OF_THEIR_OWN = ("mode", "observe", "leave")

MAX_UID = 2**32 - 2  #: the last number means no user, chown(2)
MAX_NAME = 256  #: characters: a glob of many stars takes its time

#: Reads a value; its ValueError or InvalidRequestError is one line that quotes the wrong value.
Reader = Callable[[Any], Any]


def _written(read: Callable[[str], Any]) -> Reader:
    """Return the reader of a value that `read` takes as a text."""
    return lambda value: read(value if isinstance(value, str) else shown(value))


def _cpus(value: object) -> object:
    try:
        return value if value in (GRANTED, NOTHING) else _written(PARAMETERS["cpus"].read)(value)
    except ValueError as error:
        raise ValueError(f"{error}, nor {GRANTED!r} or {NOTHING!r}") from None


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{shown(value)} is neither true nor false")  # noqa: TRY004 - of TOML
    return value


def _nics(names: str) -> str:
    nic_libraries(names)
    return names


def _name(value: object) -> str:
    (name,) = _names(value)
    return name


def _names(value: object, least: int = 1) -> list[str]:
    """Read a name or a glob, or a list of some."""
    names: list[Any] = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(it, str) and least <= len(it) <= MAX_NAME for it in names):
        raise ValueError(f"{shown(value)} is no name or glob in quotes, nor a list of some")
    return names


def _uids(value: object) -> list[int]:
    uids: list[Any] = value if isinstance(value, list) else [value]
    if not uids or not all(type(uid) is int and 0 <= uid <= MAX_UID for uid in uids):
        raise ValueError(f"{shown(value)} is no user's number, nor a list of some")
    return uids


def _cgroups(value: object) -> list[str]:
    paths = _names(value)
    if wrong := [path for path in paths if path[0] not in "/*?["]:
        raise ValueError(f"{shown(wrong[0])} is no path of a cgroup; begin it with / or *")
    return paths


def _environment(value: object) -> dict[str, list[str]]:
    if not isinstance(value, dict) or not value or any("=" in it for it in map(_name, value)):
        raise ValueError(f"{shown(value)} is no table of variables, like {{ TEAM = 'vision*' }}")
    return {name: _names(texts, least=0) for name, texts in value.items()}


PLANNED = ("mode", "share", "scope", "min_physical_cores")  #: of these, `Treatment.options`
#: How processes are treated; what is left out is as the top level, or the site, has it.
SETTINGS: Mapping[str, Reader] = {
    **{name: _written(PARAMETERS[name].read) for name in PLANNED},
    "cpus": _cpus,
    "observe": _switch,
    "leave": _switch,
    # Of containers as they are created, by NRI.
    "nics": _written(_nics),
    "memory": _written(one_of("bind", "none")),
    "without_request": _written(one_of("share", "keep")),
}
#: Conditions on processes.
KEYS: Mapping[str, Reader] = {
    **dict.fromkeys(NAMED, _names),
    "uid": _uids,
    "cgroup": _cgroups,
    "environment": _environment,
}

Table = Mapping[str, Any]  #: the values of a policy, or of a rule, by their keys


def parse(text: str, site: Treatment = NODE) -> Policy:
    """Read a policy's file; `site` has the defaults. Raises PolicyError."""
    top, rules = document(text)
    defaults = _treatment(top, site)
    return Policy(
        defaults, tuple(_rule(number, rule, defaults) for number, rule in enumerate(rules, 1))
    )


def document(text: str) -> tuple[Table, list[Table]]:
    """Return the settings of a policy's file, and its rules.

    Raises PolicyError, one line: the rule, its key and value, or TOML's line and column.
    """
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise PolicyError(f"it is not TOML: {one_line(str(error))}") from None
    except RecursionError:
        raise PolicyError("it is nested too deeply") from None
    rules = tables.pop("rule", [])
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        remedy = "write [[rule]], in two brackets, above each"
        raise PolicyError(one_line(f"{shown(rules)} is not a list of rules; {remedy}"))
    in_rule = {**KEYS, **SETTINGS}
    return _read(tables, "", SETTINGS), [
        _read(rule, f"{_place(number, rule)}: ", in_rule) for number, rule in enumerate(rules, 1)
    ]


def _read(table: Table, place: str, readers: Mapping[str, Reader]) -> Table:
    values = {}
    for name, value in table.items():
        if name not in readers:
            why = f"unknown {quote(name)}; {suggestion(name, readers)}"
            if name in KEYS:
                why = f"{name} selects processes; write it below a line [[rule]]"
            raise PolicyError(one_line(f"{place}{why}"))
        try:
            values[name] = readers[name](value)
        except (ValueError, InvalidRequestError) as error:
            why = str(error).removeprefix(f"{name}: ")
            raise PolicyError(one_line(f"{place}{name}: {why}")) from None
    return values


def _treatment(settings: Table, before: Treatment) -> Treatment:
    """Return a treatment with these settings; the mode `node` is one node, for any scope."""
    values = {name: settings[name] for name in SETTINGS if name in settings}
    planned = {name: values.pop(name) for name in PLANNED if name in values}
    if "scope" in planned and "mode" not in planned and before.options.mode == NODE.options.mode:
        planned["mode"] = "all"
    return replace(before, options=replace(before.options, **planned), **values)


def _rule(number: int, values: Table, defaults: Treatment) -> Rule:
    treatment = replace(_treatment(values, defaults), rule=number)
    if values.keys().isdisjoint(KEYS):
        raise PolicyError(f"rule {number}: it selects nothing; give it one of {', '.join(KEYS)}")
    unused = [name for name in SETTINGS if name in values and name != "leave"]
    if treatment.leave and unused:
        why = "has no effect with leave = true; remove it, or write leave = false"
        raise PolicyError(one_line(f"{_place(number, values)}: {unused[0]} {why}"))
    conditions: dict[str, Container[Any]] = {
        name: NamePatterns(values[name]) for name in NAMED if name in values
    }
    if "uid" in values:
        conditions["uid"] = frozenset(values["uid"])
    return Rule(
        treatment,
        conditions,
        cgroup=NamePatterns(values["cgroup"]) if "cgroup" in values else None,
        environment={
            name: NamePatterns(globs) for name, globs in values.get("environment", {}).items()
        },
    )


def _place(number: int, rule: Table) -> str:
    """Return a rule's name in a message: its number, and the first condition of it."""
    first = next((f" ({key} = {shown(it)})" for key, it in rule.items() if key in KEYS), "")
    return f"rule {number}{first}"


def shown(value: object) -> str:
    """Return a value of any kind as a message shows it."""
    if isinstance(value, bool):
        return str(value).lower()
    try:
        return quote(value) if isinstance(value, str) else reprlib.repr(value)
    except ValueError:  # more digits than Python writes
        return "a huge number"


def described(text: str) -> list[str]:
    """Return lines that tell what a policy matches and does. Raises PolicyError."""
    parse(text)
    table, rules = document(text)
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
