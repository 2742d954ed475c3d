"""Settings of the daemon and its clients: flag, else AFFINITYD_* variable, else the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from affinityd.config import file
from affinityd.config.switch import ON
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.text import quote

NAMES = (
    "root",
    "machine",
    "node_name",
    "socket",
    "listen",
    "listen_plan",
    "reserved_cpus",
    "scan_interval",
    "job_series",
    "admin_group",
    "enforce",
    "enforce_policy",
    "migrate_memory",
    "log_format",
)
#: What counts for the daemon alone, whatever a client finds in variables and file.
DAEMON_ONLY = frozenset(("enforce", "enforce_policy", "migrate_memory"))
DEFAULT_LISTEN = ("127.0.0.1", 9465)
EXCLUSIVE = {"root", "machine"}  #: settings that exclude each other
OFF = "off"
#: What `enforce` may be: it is off, or says what it would pin, or pins.
OBSERVE, PIN = "observe", "pin"
ENFORCE_VALUES = (OFF, OBSERVE, PIN)
MAX_PORT = 65535
MAX_INTERVAL = 3600  #: seconds
MAX_JOB_SERIES = 1000
MAX_GID = 2**32 - 2  #: the last is nobody's, chown(2)
MAX_DIGITS = len(str(MAX_GID))
MAX_NAME = 253  #: characters of a DNS name, RFC 1035, and so of a node of Kubernetes


@dataclass(frozen=True)
class Settings:
    """Every setting, checked."""

    root: str = "/"
    machine: str | None = None  #: a shipped machine, instead of `root`
    node_name: str | None = None  #: of the machine that we run on; None: what uname(2) calls it
    socket: str = "affinityd.sock"
    listen: tuple[str, int] | None = None  #: host and port; None: no TCP
    listen_plan: tuple[str, int] | None = None  #: where GET /plan alone is answered
    reserved_cpus: CpuSet = frozenset()
    scan_interval: int | None = 15  #: seconds; None: processes are not looked at
    job_series: int = 0  #: how many jobs have metrics of their own
    admin_group: int | None = None  #: gid of those who see every user's processes; None: root alone
    enforce: str = "off"  #: of WAYS
    enforce_policy: str | None = None  #: a file that has to be there; None: the usual one, if it is
    migrate_memory: bool = False  #: whether the pages of what is pinned are moved near, too
    log_format: str = "text"
    switch: str = ON  #: AFFINITYD, of the daemon alone: what clients are told

    @property
    def replays(self) -> bool:
        """Whether the machine is not the one that we run on."""
        return self.machine is not None or os.path.realpath(self.root) != "/"


@dataclass(frozen=True)
class SettingText:
    """A setting's text, and the name that it was given by."""

    text: str
    name: str


def load(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str] = os.environ,
    names: Collection[str] = NAMES,
) -> Settings:
    """Return the settings. `flags` are the command line's; only those of `names` are looked at.

    Raises InvalidRequestError with one line that names the value and where it comes from.
    """
    path = file.path(environ)
    in_file = _variables(file.read(path), f" in {path}")
    chosen: dict[str, SettingText] = {}
    for whole in (_flags(flags), _variables(environ), in_file):
        layer = {name: given for name, given in whole.items() if name in names}
        if layer.keys() >= EXCLUSIVE:
            names = " and ".join(layer[name].name for name in sorted(EXCLUSIVE, reverse=True))
            raise InvalidRequestError(f"{names} both name a machine; give one of them")
        settled = EXCLUSIVE if chosen.keys() & EXCLUSIVE else set()
        chosen = {**{name: layer[name] for name in layer.keys() - settled}, **chosen}
    read = {name: _READERS[name](given.text, given.name) for name, given in chosen.items()}
    made = Settings(**{"socket": file.default_socket(environ), "listen": DEFAULT_LISTEN, **read})
    if made.enforce != OFF:
        _check_enforce(made, chosen)
    return made


def _check_enforce(settings: Settings, chosen: Mapping[str, SettingText]) -> None:
    """Raise InvalidRequestError where there are no processes to be pinned."""
    enforce = chosen["enforce"]
    if settings.replays:
        other, why = chosen.get("machine") or chosen["root"], "replays another machine"
    elif settings.scan_interval is None:
        other, why = chosen["scan_interval"], "has nobody look at processes"
    else:
        return
    raise InvalidRequestError(
        f"{enforce.name}: {quote(enforce.text)} takes this machine's processes, and {other.name} "
        f"{why}; give --enforce off, or leave {other.name} out"
    )


def _flags(flags: Mapping[str, str | None]) -> dict[str, SettingText]:
    given = {
        name: SettingText(text, f"--{name.replace('_', '-')}")
        for name in NAMES
        if (text := flags.get(name)) is not None
    }
    for setting in given.values():
        if not setting.text:
            raise InvalidRequestError(f"{setting.name} is empty; give it a value")
    return given


def _variables(values: Mapping[str, str], where: str = "") -> dict[str, SettingText]:
    """Return the settings among variables; an empty one is not set."""
    names = {name: file.PREFIX + name.upper() for name in NAMES}
    return {
        name: SettingText(text, variable + where)
        for name, variable in names.items()
        if (text := values.get(variable))
    }


def _text(text: str, _name: str) -> str:
    return text


def _node_name(text: str, name: str) -> str:
    if not text.isprintable() or len(text) > MAX_NAME:
        raise InvalidRequestError(
            f"{name}: {quote(text)} is no node's name; give a line of {MAX_NAME} characters at most"
        )
    return text


def _listen(text: str, name: str) -> tuple[str, int] | None:
    return None if text == "none" else host_and_port(text, name)


def host_and_port(text: str, name: str) -> tuple[str, int]:
    """Read HOST:PORT, which somebody gave by this name. Raises InvalidRequestError."""
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))
    if not (colon and host and is_port and int(port) <= MAX_PORT):
        raise InvalidRequestError(
            f"{name}: {quote(text)} is not HOST:PORT; write it like 127.0.0.1:9465, or none"
        )
    return host.strip("[]"), int(port)


def _cpus(text: str, name: str) -> CpuSet:
    try:
        return parse_list(text)
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}") from None


def _scan_interval(text: str, name: str) -> int | None:
    if text == OFF:
        return None
    return _whole_number(text, name, range(1, MAX_INTERVAL + 1), " seconds, or off")


def _job_series(text: str, name: str) -> int:
    return _whole_number(text, name, range(MAX_JOB_SERIES + 1), " jobs")


def _whole_number(text: str, name: str, within: range, unit: str) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(within[-1]))
    if not (is_number and int(text) in within):
        raise InvalidRequestError(
            f"{name}: {quote(text)} is not a whole number from {within[0]} to {within[-1]}{unit}"
        )
    return int(text)


def _group(text: str, name: str) -> int:
    """Read a group's name, or its number, which no group need have."""
    import grp  # noqa: PLC0415 - clients read settings too, and must start fast

    if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and int(text) <= MAX_GID:
        return int(text)
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):  # the latter for what can be no name
        raise InvalidRequestError(
            f"{name}: there is no group {quote(text)} here; give a group's name or number"
        ) from None


def _enforce(text: str, name: str) -> str:
    if text not in ENFORCE_VALUES:
        raise InvalidRequestError(f"{name}: {quote(text)} is none of {', '.join(ENFORCE_VALUES)}")
    return text


def _switch(text: str, name: str) -> bool:
    if text not in {"on", OFF}:
        raise InvalidRequestError(f"{name}: {quote(text)} is neither on nor off")
    return text == "on"


def _log_format(text: str, name: str) -> str:
    if text not in {"text", "json"}:
        raise InvalidRequestError(f"{name}: {quote(text)} is neither text nor json")
    return text


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "root": _text,
    "machine": _text,
    "node_name": _node_name,
    "socket": _text,
    "listen": _listen,
    "listen_plan": _listen,
    "reserved_cpus": _cpus,
    "scan_interval": _scan_interval,
    "job_series": _job_series,
    "admin_group": _group,
    "enforce": _enforce,
    "enforce_policy": _text,
    "migrate_memory": _switch,
    "log_format": _log_format,
}
