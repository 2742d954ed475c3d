"""The policy of enforcement: which processes are pinned, and how.

The first rule that matches counts, its settings over the defaults. The file may change while the
daemon runs: the last good one applies.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cached_property
from pathlib import Path
from typing import Any

from affinityd.config import PREFIX
from affinityd.enforce.policy.identity import SLURMS, ProcessIdentity
from affinityd.errors import InvalidRequestError
from affinityd.linux.files import read_regular
from affinityd.planner import Options
from affinityd.request.parameters import parse_request

GRANTED = "granted"  #: its part of its job's CPUs, if known
BIND = "bind"  #: of memory: pages are on these nodes alone
NOTHING = "none"  #: near CPUs are all that counts, however few

NEAR = Options(mode="node")  #: the CPUs of its GPU's node


@dataclass(frozen=True)
class Treatment:
    """A policy's treatment of a process."""

    #: How its GPUs are planned. The defaults are those of `affinityd exec` here.
    options: Options = NEAR
    #: The CPUs that each rank asked for: a number, GRANTED or NOTHING; it needs as many.
    cpus: int | str = GRANTED
    leave: bool = False
    observe: bool = False  #: its pin is reported, and not done
    # Of containers that are adjusted by NRI; None: as the site has it.
    nics: str | None = None  #: libraries that are told the NICs near a GPU, like `ucx,nccl`
    memory: str | None = None  #: BIND: to the NUMA nodes near its GPUs
    without_request: str | None = None  #: the CPUs of one without a CPU request
    rule: int | None = None  #: the number of the policy's rule, from 1; None: its defaults
    unread: tuple[str, ...] = ()  #: fields of its rule that cannot be read

    @property
    def source(self) -> str:
        """The part of the policy that says it, for people."""
        return "the top level" if self.rule is None else f"rule {self.rule}"


NODE = Treatment()  #: of every process, without a policy or a site's settings


@dataclass(frozen=True)
class PolicyState:
    """Which policy counts."""

    file: str | None = None  #: None: none is named, and there is none where one is looked for
    read: float | None = None  #: when the policy in force was read, seconds since the epoch
    rules: int = 0
    error: str | None = None  #: why the file as it is now does not count, and where in it


#: Keys of a rule that ask for a name of a process, each a field of `ProcessIdentity`.
NAMED = ("partition", "account", "user", "namespace", "pod")


class PolicyError(InvalidRequestError):
    """An invalid policy: the place of the error, and the remedy."""


class NamePatterns:
    """Names, and globs for names: `*`, `?`, `[abc]`, `[!abc]`, as fnmatch(3) has them."""

    def __init__(self, globs: Iterable[str]) -> None:
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
        """Whether all conditions are met, apart from those that are `unread`."""
        unread, environment = identity.unread, identity.environment or {}
        fields = self.fields.items()
        return (
            all(name in unread or getattr(identity, name) in values for name, values in fields)
            and (self.cgroup is None or self.path(identity.cgroups) is not None)
            and (
                "environment" in unread
                or all(environment.get(name) in globs for name, globs in self.environment.items())
            )
        )

    def unread(self, identity: ProcessIdentity) -> frozenset[str]:
        """Return the fields of its conditions that cannot be read of this process."""
        return identity.unread & {*self.fields, *(["environment"] if self.environment else [])}

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

        A rule with a condition that cannot be read applies only if it may keep the process from a
        pin, and then says so.
        """
        for rule in filter(lambda rule: rule.matches(identity), self.rules):
            unread, treatment = rule.unread(identity), rule.treatment
            if not unread:
                return treatment
            if treatment.leave or treatment.observe:
                return replace(treatment, unread=tuple(sorted(unread)))
        return self.defaults

    def names_cgroup(self, identity: ProcessIdentity) -> str | None:
        """Return the cgroup that is the process's job, by the first rule that names one of them.

        None if none does, or that rule leaves it alone.
        """
        for rule in self.rules:
            if rule.cgroup is not None and rule.matches(identity) and not rule.unread(identity):
                return None if rule.treatment.leave else rule.path(identity.cgroups)
        return None

    def may_name(self, cgroups: Collection[str]) -> bool:
        """Whether a rule names one of these cgroups at all; else `names_cgroup` is None."""
        return any(rule.path(cgroups) is not None for rule in self.rules)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables of a process's environment that rules ask for."""
        slurms = {SLURMS[name] for rule in self.rules for name in rule.fields if name in SLURMS}
        return frozenset(slurms).union(*(rule.environment for rule in self.rules))


FILE = "/etc/affinityd-policy.toml"
MAX_FILE = 64 * 1024  #: bytes

_UNREAD = object()


class PolicyFile:
    """Reads the file at each look: it is small, and a new one may have the old one's time.

    A change counts when two looks in a row found the same: a file may be half written, or missing
    for a moment while an editor replaces it.
    """

    def __init__(
        self, path: str = FILE, *, parse: Callable[[str], Policy], is_optional: bool
    ) -> None:
        self._path = path
        self._parse = parse
        self._is_optional = is_optional
        self._policy: Policy | None = None
        self._seen: object = _UNREAD  # the file as it was at the last look; None: there was none
        self._counts: object = _UNREAD  # as it was when it was parsed
        self.state = PolicyState(file=None if is_optional else path)

    def current(self) -> Policy | None:
        """Return the policy that counts; None: none could be read yet, and nothing is pinned."""
        before, self._seen = self._seen, _UNREAD
        data: bytes | None = None
        try:
            if not self._is_optional or Path(self._path).exists():
                data = read_regular(self._path, MAX_FILE)
            self._seen = data
            if data == self._counts:
                self.state = replace(self.state, error=None)
            elif data == before or self._policy is None:
                policy = self._policy = self._parse(decoded(data or b""))
                self._counts = data
                is_read = PolicyState(self._path, time.time(), len(policy.rules))
                self.state = PolicyState() if data is None else is_read
        except OSError as error:
            why = f"it cannot be read: {error.strerror}"
            self.state = replace(self.state, file=self._path, error=why)
        except PolicyError as error:
            self.state = replace(self.state, file=self._path, error=str(error))
        return self._policy

    @property
    def is_unsettled(self) -> bool:
        """Whether the last look found another text than the one that counts."""
        return self._seen is not _UNREAD and self._seen != self._counts


def decoded(data: bytes) -> str:
    """Return a policy's text. Raises PolicyError where it is too long, or no UTF-8."""
    if len(data) > MAX_FILE:
        raise PolicyError(f"it is longer than {MAX_FILE} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"it is not UTF-8 (at line {line})") from None


#: Parameters of a plan that a site may set; `strict` would refuse processes that no plan helps.
SITE = (
    *("mode", "scope", "share", "multithreading", "balanced"),
    *("min_physical_cores", "max_physical_cores"),
)


def site(variables: Mapping[str, str]) -> Treatment:
    """Return the defaults of a policy, by a site's AFFINITYD_* variables.

    They are those of `affinityd exec` and the TaskProlog: both then pin to the same CPUs. Raises
    InvalidRequestError.
    """
    parameters = {
        name: variables[text] for name in SITE if (text := PREFIX + name.upper()) in variables
    }
    # A number of the site's is each task's, and several may share a GPU, which is a rank here.
    cpus = NOTHING if variables.get(f"{PREFIX}CPUS") == NOTHING else GRANTED
    options = parse_request(parameters.items()).options
    return Treatment(options, cpus)
