"""A policy: which processes are pinned, and how; a small TOML file. Pure.

The first rule that matches counts, its settings over the defaults.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from affinityd.enforce.policy.identity import SLURMS, ProcessIdentity
from affinityd.enforce.policy.keys import (
    KEYS,
    NAMED,
    SETTINGS,
    NamePatterns,
    refused,
    shown,
    suggestion,
)
from affinityd.enforce.policy.model import NODE, Treatment
from affinityd.errors import InvalidRequestError
from affinityd.text import one_line, quote

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_LINE = 4096  #: characters
MAX_RULES = 1000  #: each of which is looked at for each process


class PolicyError(InvalidRequestError):
    """A policy that is none: where it is wrong, and what would be right."""


@dataclass(frozen=True)
class Rule:
    """What is to be so of a process, and how it is treated then."""

    treatment: Treatment
    names: Mapping[str, NamePatterns] = field(
        default_factory=dict
    )  #: by field of `ProcessIdentity`
    uids: frozenset[int] | None = None  #: None: anybody
    cgroup: NamePatterns | None = None  #: None: anywhere
    environment: Mapping[str, NamePatterns] = field(default_factory=dict)  #: by variable

    def matches(self, identity: ProcessIdentity) -> bool:
        """Whether all of it is so; what cannot be read is not."""
        return not self._unknown(identity) and self._may_match(identity)

    def may_leave(self, identity: ProcessIdentity) -> frozenset[str]:
        """Return what cannot be read, and keeps us from saying whether this rule bars a pin.

        Nothing where the rule pins, or that is known.
        """
        is_kept = self.treatment.leave or self.treatment.observe
        unknown = self._unknown(identity) if is_kept else frozenset[str]()
        return unknown if unknown and self._may_match(identity) else frozenset()

    def _unknown(self, identity: ProcessIdentity) -> frozenset[str]:
        asked = {*self.names, *(["environment"] if self.environment else [])}
        return identity.unread & asked

    def _may_match(self, identity: ProcessIdentity) -> bool:
        """Whether all of it that is known is so."""
        unread, environment = identity.unread, identity.environment or {}
        return (
            (self.uids is None or identity.uid in self.uids)
            and all(
                name in unread or getattr(identity, name) in names
                for name, names in self.names.items()
            )
            and (self.cgroup is None or self.path(identity.cgroups) is not None)
            and (
                "environment" in unread
                or all(environment.get(name) in it for name, it in self.environment.items())
            )
        )

    def path(self, cgroups: Collection[str]) -> str | None:
        """Return the first of the cgroups that it names."""
        names = self.cgroup
        return None if names is None else next((path for path in cgroups if path in names), None)


@dataclass(frozen=True)
class Policy:
    """Rules, in their order; by itself: everything is pinned to its GPU's node."""

    defaults: Treatment = NODE
    rules: tuple[Rule, ...] = ()

    def treatment(self, identity: ProcessIdentity) -> Treatment:
        """Return how a process is treated.

        Whom a rule may leave or observe, if only one knew, is left: better one too many.
        """
        for rule in self.rules:
            if unread := rule.may_leave(identity):
                return replace(rule.treatment, unread=tuple(sorted(unread)))
            if rule.matches(identity):
                return rule.treatment
        return self.defaults

    def names_cgroup(self, identity: ProcessIdentity) -> str | None:
        """Return the cgroup that is the process's job, by the first rule that names one of its own.

        None where none does, or that one leaves it.
        """
        naming = (rule for rule in self.rules if rule.cgroup is not None and rule.matches(identity))
        rule = next(naming, None)
        return None if rule is None or rule.treatment.leave else rule.path(identity.cgroups)

    def may_name(self, cgroups: Collection[str]) -> bool:
        """Whether a rule names one of these cgroups, of whomever; else `names_cgroup` is None."""
        return any(rule.path(cgroups) is not None for rule in self.rules)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables of a process's environment that rules ask for."""
        slurms = {SLURMS[name] for rule in self.rules for name in rule.names if name in SLURMS}
        return frozenset(slurms).union(*(rule.environment for rule in self.rules))


def parse(text: str, site: Treatment = NODE) -> Policy:
    """Read a policy's file; what it says nothing of is as `site` has it.

    Raises PolicyError, one line: the rule, its key and value, or TOML's line and column.
    """
    try:
        return _policy(_document(text), site)
    except ValueError as error:
        raise PolicyError(one_line(str(error))) from None


def _document(text: str) -> dict[str, Any]:
    lengths = (len(line) for line in text.split("\n"))
    for number, length in enumerate(lengths, start=1):
        if length > MAX_LINE:  # tomllib takes ever longer for a key of many parts
            raise ValueError(f"line {number} has {length} characters; the most is {MAX_LINE}")
    try:
        document: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply for TOML to be read") from None
    except ValueError as error:
        raise ValueError(f"it is no TOML: {error}") from None
    return document


def _policy(document: Mapping[str, object], site: Treatment) -> Policy:
    settings = {name: value for name, value in document.items() if name != "rule"}
    misplaced = [name for name in settings if name in KEYS]
    if misplaced:
        raise ValueError(f"{misplaced[0]} asks who a process is; write it below a line [[rule]]")
    defaults = _said(site, _read(settings, SETTINGS, ("rule", *SETTINGS)))
    tables = document.get("rule", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise refused(tables, "no list of rules; write [[rule]], in two brackets, above each")
    if len(tables) > MAX_RULES:
        raise ValueError(f"{len(tables)} rules are too many; the most is {MAX_RULES}")
    return Policy(defaults, tuple(_rule(*it, defaults) for it in enumerate(tables, start=1)))


def _rule(number: int, table: Mapping[str, object], defaults: Treatment) -> Rule:
    """Read a rule, by its number from 1. Raises ValueError, which says which rule it is."""
    try:
        return _checked_rule(number, table, defaults)
    except ValueError as error:
        first = next((f" ({name} = {shown(table[name])})" for name in table if name in KEYS), "")
        raise ValueError(f"rule {number}{first}: {error}") from None


def _checked_rule(number: int, table: Mapping[str, object], defaults: Treatment) -> Rule:
    said = _read(table, {**KEYS, **SETTINGS}, (*KEYS, *SETTINGS))
    keys = {key: said[key] for key in KEYS if key in said}
    settings = {name: said[name] for name in SETTINGS if name in said}
    if not keys:
        raise ValueError(f"it asks nothing; give it one of {', '.join(KEYS)}")
    treatment = replace(_said(defaults, settings), rule=number)
    idle = [name for name in settings if name != "leave"]
    if treatment.leave and idle:
        raise ValueError(f"{idle[0]} is of no use where leave is true; write leave = false with it")
    return Rule(
        treatment,
        names={key: keys[key] for key in NAMED if key in keys},
        uids=keys.get("uid"),
        cgroup=keys.get("cgroup"),
        environment=keys.get("environment", {}),
    )


def _said(before: Treatment, settings: Mapping[str, Any]) -> Treatment:
    """Return a treatment with what was said; the mode `node` is one node, whatever the scope."""
    if "scope" in settings and "mode" not in settings and before.mode == NODE.mode:
        return replace(before, mode="all", **settings)
    return replace(before, **settings)


def _read(
    table: Mapping[str, object],
    readers: Mapping[str, Callable[[object], Any]],
    known: Collection[str],
) -> dict[str, Any]:
    """Return what a table says, by name. Raises ValueError, which names the first that is wrong."""
    said = {}
    for name, value in table.items():
        if name not in readers:
            raise ValueError(f"unknown {quote(name)}; {suggestion(name, known)}")
        try:
            said[name] = readers[name](value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return said
