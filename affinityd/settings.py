"""Settings of the daemon and its clients: flag, else AFFINITYD_* variable, else the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from affinityd import conffile
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError, quote

NAMES = (
    "root",
    "machine",
    "node_name",
    "socket",
    "listen",
    "listen_plan",
    "reserved_cpus",
    "log_format",
)
DEFAULT_LISTEN = ("127.0.0.1", 9465)
ONE_MACHINE = {"root", "machine"}  #: settings that exclude each other
MAX_PORT = 65535
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
    log_format: str = "text"

    @property
    def replays(self) -> bool:
        """Whether the machine is not the one that we run on."""
        return self.machine is not None or os.path.realpath(self.root) != "/"


@dataclass(frozen=True)
class Given:
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
    path = conffile.path(environ)
    in_file = _variables(conffile.read(path), f" in {path}")
    chosen: dict[str, Given] = {}
    for whole in (_flags(flags), _variables(environ), in_file):
        layer = {name: given for name, given in whole.items() if name in names}
        if layer.keys() >= ONE_MACHINE:
            names = " and ".join(layer[name].name for name in sorted(ONE_MACHINE, reverse=True))
            raise InvalidRequestError(f"{names} both name a machine; give one of them")
        settled = ONE_MACHINE if chosen.keys() & ONE_MACHINE else set()
        chosen = {**{name: layer[name] for name in layer.keys() - settled}, **chosen}
    read = {name: _READERS[name](given.text, given.name) for name, given in chosen.items()}
    return Settings(
        **{"socket": conffile.default_socket(environ), "listen": DEFAULT_LISTEN, **read}
    )


def _flags(flags: Mapping[str, str | None]) -> dict[str, Given]:
    given = {
        name: Given(text, f"--{name.replace('_', '-')}")
        for name in NAMES
        if (text := flags.get(name)) is not None
    }
    for setting in given.values():
        if not setting.text:
            raise InvalidRequestError(f"{setting.name} is empty; give it a value")
    return given


def _variables(values: Mapping[str, str], where: str = "") -> dict[str, Given]:
    """Return the settings among variables; an empty one is not set."""
    names = {name: conffile.PREFIX + name.upper() for name in NAMES}
    return {
        name: Given(text, variable + where)
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
    "log_format": _log_format,
}
