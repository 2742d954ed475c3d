"""Tells communication libraries which RDMA devices are near a process's GPUs, by variables."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from affinityd.config.file import PREFIX
from affinityd.errors import InvalidRequestError
from affinityd.linux.files import listed, text
from affinityd.request.nic_variables import VARIABLES, value
from affinityd.text import quote

NONE = "none"
VARIABLE = f"{PREFIX}NICS"  #: which libraries the site or the user wants to be told
EXPORTED = f"{PREFIX}RDMA"  #: the ports that a process was given, for programs that it starts
ACTIVE = "4:"  #: begins a port's state, enum ib_port_state


def libraries(said: str) -> tuple[str, ...]:
    """Read the names of libraries, like `ucx,nccl`. Raises InvalidRequestError."""
    names = tuple(dict.fromkeys(name.strip() for name in said.lower().split(",")))
    if names == (NONE,):
        return ()
    for name in names:
        if name not in VARIABLES:
            raise InvalidRequestError(
                f"nics: {quote(name)} is not one of {', '.join(VARIABLES)} ({NONE} stands alone)"
            )
    return names


def export_nics(
    said: str, ports: Sequence[str] | None, settings: Mapping[str, str]
) -> Iterator[str]:
    """Set variables of this process for libraries; yield what is not as asked for, a line each.

    `said` is which libraries, `ports` are the plan's, like `mlx5_2:1`; None: an older daemon made
    it. `settings` are the AFFINITYD_* variables. A variable that the user has set stays, and no
    device is named that this process cannot open: a library that may use nothing else would fail.
    """
    try:
        names = libraries(said)
    except InvalidRequestError as error:
        yield f"{error}; no library is told"
        return
    if not names:
        return
    if ports is None:
        yield "nics: the daemon is of an older release, and names no RDMA devices"
        return
    root = settings.get(f"{PREFIX}ROOT", "").rstrip("/") + "/"
    usable = [port for port in ports if is_usable(port, root)]
    former = os.environ.get(EXPORTED, "").split(",")
    untold = []
    for name in names:
        variable, given = VARIABLES[name], value(name, usable)
        set_before = os.environ.get(variable)
        if set_before and set_before not in {given, value(name, former)}:
            yield f"{variable}={quote(set_before)} was set before, and stays"
        elif usable:
            os.environ[variable] = given
        else:
            os.environ.pop(variable, None)
            untold.append(variable)
    if untold:
        yield f"not set: {', '.join(untold)}; {_missing(ports, root)}"
    os.environ[EXPORTED] = ",".join(usable)


def is_usable(port: str, root: str = "/") -> bool:
    """Whether a port is active, and its device can be opened here."""
    device, _, _ = port.partition(":")
    return _is_active(port, root) and any(
        os.access(f"{root}dev/infiniband/{name}", os.R_OK | os.W_OK)
        for name in verbs_files(device, root)
    )


def verbs_files(device: str, root: str = "/") -> list[str]:
    """Return the names of an RDMA device's files in /dev/infiniband."""
    files = f"{root}sys/class/infiniband/{device}/device/infiniband_verbs"
    # An adapter may have several devices.
    return [name for name in listed(files) if text(f"{files}/{name}/ibdev") == device]


def _is_active(port: str, root: str) -> bool:
    device, _, number = port.partition(":")
    state = text(f"{root}sys/class/infiniband/{device}/ports/{number}/state")
    return state.startswith(ACTIVE)


def _missing(ports: Sequence[str], root: str) -> str:
    """Return why no port can be named."""
    if not ports:
        return "the plan has no active device of InfiniBand, RoCE or EFA"
    active = [port for port in ports if _is_active(port, root)]
    if active:
        return f"this process cannot open {', '.join(active)} in /dev/infiniband"
    return f"not active here: {', '.join(ports)}"
