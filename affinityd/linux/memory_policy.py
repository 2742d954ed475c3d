"""Memory policies of threads: set a policy, and read which policy then applies.

A policy belongs to one thread. A program that it execs, and threads and children that it starts
afterwards, inherit it: set_mempolicy(2). /proc/PID/numa_maps has another process's policy, numa(7).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace

from affinityd.cpuset import parse_list, several
from affinityd.errors import InvalidRequestError
from affinityd.linux import syscalls
from affinityd.linux.files import read
from affinityd.text import quote

POLICIES = ("local", "preferred", "bind", "interleave")

#: The kernel's modes by number: include/uapi/linux/mempolicy.h.
POLICY_MODES = (
    "default",
    "preferred",
    "bind",
    "interleave",
    "local",
    "preferred_many",  # since 5.15
    "weighted_interleave",  # since 6.9
)

#: The spellings of numa_maps: kernel mm/mempolicy.c, policy_modes. A spelling stands before those
#: that are its prefix.
SPELLINGS = {
    "prefer (many)": "preferred_many",
    "prefer": "preferred",
    "weighted interleave": "weighted_interleave",
    **{name: name for name in ("default", "bind", "interleave", "local")},
}


@dataclass(frozen=True)
class MemoryPolicy:
    """A memory policy, and the refused parts of the request."""

    policy: str | None  #: one of POLICY_MODES, or "mode N" of a later kernel; None: unreadable
    nodes: frozenset[int] = frozenset()  #: no nodes for "default" and "local"
    refusals: tuple[str, ...] = ()  #: refused parts of the request, and why, in short sentences

    def __str__(self) -> str:
        """Return the policy in a few words: `bind on node 3`, without the refusals."""
        policy = self.policy or "unknown"
        return f"{policy} on {several('node', self.nodes)}" if self.nodes else policy


def checked_policy(text: str | None) -> str | None:
    """Return the requested policy; None if no policy is requested. Raises InvalidRequestError."""
    if text is not None and text not in POLICIES:
        raise InvalidRequestError(f"memory: {quote(text)} is not one of {', '.join(POLICIES)}")
    return text


def set_policy(policy: str, nodes: frozenset[int]) -> MemoryPolicy:
    """Set the calling thread's policy, one of POLICIES, and return the policy that is read back.

    A refusal never raises: the policy stays as it was, and `refusals` says so. `preferred` with
    several nodes is the kernel's preferred_many (since 5.15). `local` ignores `nodes`.
    """
    is_many = policy == "preferred" and len(nodes) > 1
    name = "preferred_many" if is_many else policy
    wish = MemoryPolicy(name, frozenset() if policy == "local" else nodes)
    refusal = None
    if policy != "local" and not nodes:
        refusal = f"{policy} needs a node and was given none"
    else:
        try:
            syscalls.set_mempolicy(POLICY_MODES.index(name), wish.nodes)
        except OSError as error:
            number = errno.errorcode.get(error.errno or 0, error.errno)
            refusal = f"{wish} was refused ({number}: {error.strerror})"
    now = own_policy() or MemoryPolicy(None)
    outcome = f"{now} applies" if now.policy else "the policy that applies cannot be read"
    if refusal is not None:
        refusal = f"{refusal}; {outcome}"
    elif now.policy != wish.policy:
        refusal = f"{wish} was accepted, but {outcome}"
    elif missing := wish.nodes - now.nodes:
        why = "without memory, or outside Mems_allowed"
        refusal = f"{wish} left out {several('node', missing)}: {why}"
    return replace(now, refusals=() if refusal is None else (refusal,))


def own_policy() -> MemoryPolicy | None:
    """Return the calling thread's policy, from numa_maps if seccomp refuses; None: unknown."""
    try:
        mode, nodes = syscalls.get_mempolicy()
    except OSError:
        return _first_policy("/proc/thread-self/numa_maps")
    policy = POLICY_MODES[mode] if mode < len(POLICY_MODES) else f"mode {mode}"
    if policy == "preferred" and not nodes:  # so kernels before 5.14 report `local`
        policy = "local"
    return MemoryPolicy(policy, nodes)


def policy_of(pid: int) -> MemoryPolicy | None:
    """Return a process's policy, by its first mapping (usually the program text); None: unknown."""
    return _first_policy(f"/proc/{pid}/numa_maps")


def parse_policy(text: str) -> MemoryPolicy | None:
    """Read the policy column of numa_maps, or a line from there on; None: it is malformed.

    Flags (`bind=static:3`) are ignored. Source: kernel mm/mempolicy.c, mpol_to_str.
    """
    spelling = next((name for name in SPELLINGS if text.startswith(name)), "")
    flags, _, numbers = text[len(spelling) :].partition(" ")[0].strip().partition(":")
    if not spelling or (flags and flags[0] != "="):
        return None
    try:
        nodes = parse_list(numbers)
    except ValueError:
        return None
    policy = SPELLINGS[spelling]
    return MemoryPolicy(policy, nodes) if bool(nodes) != (policy in ("default", "local")) else None


def _first_policy(path: str) -> MemoryPolicy | None:
    try:
        # 64 bytes tell the first mapping's policy. The kernel stops after 64, so it walks the pages
        # of that mapping only, and of mappings without pages before it: fs/seq_file.c.
        start = read(path, 64)
    except OSError:
        return None
    mapping, is_whole, _ = start.decode("ascii", "replace").partition("\n")
    if not is_whole:
        mapping = mapping[: mapping.rfind(" ")]  # the last word may be cut short
    return parse_policy(mapping.partition(" ")[2])
