"""The treatment of a process by a policy, and the policy that applies."""

from __future__ import annotations

from dataclasses import dataclass

from affinityd.planner import Options

GRANTED = "granted"  #: its part of its job's CPUs, if known
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
    rule: int | None = None  #: the number of the policy's rule, from 1; None: its defaults
    unread: tuple[str, ...] = ()  #: fields of its rule that cannot be read


NODE = Treatment()  #: of every process, without a policy or a site's settings


@dataclass(frozen=True)
class PolicyState:
    """Which policy counts."""

    file: str | None = None  #: None: none is named, and there is none where one is looked for
    read: float | None = None  #: when the policy in force was read, seconds since the epoch
    rules: int = 0
    error: str | None = None  #: why the file as it is now does not count, and where in it
