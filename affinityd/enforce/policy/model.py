"""What a policy says of a process, and which policy counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from affinityd.planner.model import Options

GRANTED = "granted"  #: its part of what its job was given, where that is known
NOTHING = "none"  #: near CPUs are all that counts, however few


@dataclass(frozen=True)
class Treatment:
    """What a policy says of a process."""

    mode: str = "node"
    share: str = "auto"
    scope: str = "node"
    min_physical_cores: int = 1  #: with fewer near cores it is let alone
    #: The CPUs that each rank asked for: a number, GRANTED or NOTHING; fewer is no place for it.
    cpus: int | str = GRANTED
    leave: bool = False
    observe: bool = False  #: what a pin would do is said, and it is not pinned
    rule: int | None = None  #: which rule of the policy said so, from 1; None: its defaults
    unread: tuple[str, ...] = ()  #: what the rule asks for and cannot be read: it may leave it
    #: What a policy does not say, as `affinityd exec` and the TaskProlog have it on this node.
    site: Options = field(default_factory=Options)


NODE = Treatment()  #: everything is pinned to its GPU's node


@dataclass(frozen=True)
class PolicyState:
    """Which policy counts."""

    file: str | None = None  #: None: none is named, and there is none where one is looked for
    read: float | None = None  #: when what counts was read, seconds since the epoch
    rules: int = 0
    error: str | None = None  #: why the file as it is now does not count, and where in it
