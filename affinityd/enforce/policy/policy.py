"""A policy: which processes are pinned, and how. Pure.

The first rule that matches counts, its settings over the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from typing import Any

from affinityd.enforce.policy.identity import SLURMS, ProcessIdentity
from affinityd.enforce.policy.model import NODE, Treatment
from affinityd.errors import InvalidRequestError

#: Keys of a rule that ask for a name of a process, each a field of `ProcessIdentity`.
NAMED = ("partition", "account", "user", "namespace", "pod")


class PolicyError(InvalidRequestError):
    """An invalid policy: the place of the error, and the remedy."""


class NamePatterns:
    """Names, and globs for names: `*`, `?`, `[abc]`, `[!abc]`, as fnmatch(3) has them."""

    def __init__(self, globs: Iterable[str]) -> None:
        """Take them."""
        self._matches = re.compile("|".join(map(translate, globs))).match

    def __contains__(self, name: object) -> bool:
        """Whether one of them is this name; one that is not known is none."""
        return isinstance(name, str) and self._matches(name) is not None


@dataclass(frozen=True)
class Rule:
    """Conditions on a process, and its treatment if they are met."""

    treatment: Treatment
    #: By field of `ProcessIdentity`: which values it may have.
    fields: Mapping[str, Container[Any]] = field(default_factory=dict)
    cgroup: NamePatterns | None = None  #: None: anywhere
    environment: Mapping[str, NamePatterns] = field(default_factory=dict)  #: by variable

    def matches(self, identity: ProcessIdentity) -> bool:
        """Whether all conditions are met; one on an unreadable field is not."""
        return not self._unknown(identity) and self._may_match(identity)

    def may_leave(self, identity: ProcessIdentity) -> frozenset[str]:
        """Return the unreadable fields without which it is unknown whether this rule bars a pin.

        None if the rule pins, or that is known.
        """
        is_kept = self.treatment.leave or self.treatment.observe
        unknown = self._unknown(identity) if is_kept else frozenset[str]()
        return unknown if unknown and self._may_match(identity) else frozenset()

    def _unknown(self, identity: ProcessIdentity) -> frozenset[str]:
        asked = {*self.fields, *(["environment"] if self.environment else [])}
        return identity.unread & asked

    def _may_match(self, identity: ProcessIdentity) -> bool:
        """Whether all of it that is known is so."""
        unread, environment = identity.unread, identity.environment or {}
        fields = self.fields.items()
        return (
            all(name in unread or getattr(identity, name) in its for name, its in fields)
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

        A process is left alone if a rule may leave or observe it, depending on unknown facts.
        """
        for rule in self.rules:
            if unread := rule.may_leave(identity):
                return replace(rule.treatment, unread=tuple(sorted(unread)))
            if rule.matches(identity):
                return rule.treatment
        return self.defaults

    def names_cgroup(self, identity: ProcessIdentity) -> str | None:
        """Return the cgroup that is the process's job, by the first rule that names one of them.

        None if none does, or that rule leaves it alone.
        """
        naming = (rule for rule in self.rules if rule.cgroup is not None and rule.matches(identity))
        rule = next(naming, None)
        return None if rule is None or rule.treatment.leave else rule.path(identity.cgroups)

    def may_name(self, cgroups: Collection[str]) -> bool:
        """Whether a rule names one of these cgroups at all; else `names_cgroup` is None."""
        return any(rule.path(cgroups) is not None for rule in self.rules)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables of a process's environment that rules ask for."""
        slurms = {SLURMS[name] for rule in self.rules for name in rule.fields if name in SLURMS}
        return frozenset(slurms).union(*(rule.environment for rule in self.rules))
