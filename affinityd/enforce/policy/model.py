"""The treatment of a process by a policy, and the policy that applies."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.planner.model import Options

GRANTED = "granted"  #: its part of what its job was given, where that is known
NOTHING = "none"  #: near CPUs are all that counts, however few

NEAR = Options(mode="node")  #: the CPUs of its GPU's node


@dataclass(frozen=True)
class Treatment:
    """What a policy says of a process."""

    #: How its GPUs are planned. What a policy does not say is as `affinityd exec` has it here.
    options: Options = NEAR
    #: The CPUs that each rank asked for: a number, GRANTED or NOTHING; fewer is no place for it.
    cpus: int | str = GRANTED
    leave: bool = False
    observe: bool = False  #: what a pin would do is said, and it is not pinned
    rule: int | None = None  #: which rule of the policy said so, from 1; None: its defaults
    unread: tuple[str, ...] = ()  #: what the rule asks for and cannot be read: it may leave it


NODE = Treatment()  #: of everything, where no policy and no site says otherwise


@dataclass(frozen=True)
class PolicyState:
    """Which policy counts."""

    file: str | None = None  #: None: none is named, and there is none where one is looked for
    read: float | None = None  #: when what counts was read, seconds since the epoch
    rules: int = 0
    error: str | None = None  #: why the file as it is now does not count, and where in it
