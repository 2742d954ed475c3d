"""Settings of the daemon and its clients: flag, else AFFINITYD_* variable, else the file.

The file, /etc/affinityd.conf, is written as a systemd EnvironmentFile, systemd.exec(5).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError, quote

FILE = "/etc/affinityd.conf"
PREFIX = "AFFINITYD_"
NAMES = ("root", "machine", "socket", "listen", "reserved_cpus", "log_format")
DEFAULT_LISTEN = "127.0.0.1:9465"
MAX_PORT = 65535


@dataclass(frozen=True)
class Settings:
    """Every setting, checked."""

    root: str = "/"
    machine: str | None = None  #: a shipped machine, instead of `root`
    socket: str = ""
    listen: tuple[str, int] | None = ("127.0.0.1", 9465)  #: None: no TCP
    reserved_cpus: CpuSet = frozenset()
    log_format: str = "text"


def load(flags: Mapping[str, str | None], environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings. `flags` are the command line's, by the names in NAMES.

    Raises InvalidRequestError with one line that names the value and where it comes from.
    """
    given = {name: value for name in NAMES if (value := flags.get(name)) is not None}
    for name, value in given.items():
        if not value:
            raise InvalidRequestError(f"--{name.replace('_', '-')} is empty; give it a value")
    in_file = _read_file(Path(environ.get("AFFINITYD_CONFIG") or FILE))
    layers = [given, _variables(environ), _variables(in_file)]
    if "root" in layers[0] and "machine" in layers[0]:
        raise InvalidRequestError("--root and --machine both name a machine; give one of them")
    machine_layer = next((layer for layer in layers if layer.keys() & {"root", "machine"}), {})
    chosen = {name: next((la[name] for la in layers if name in la), None) for name in NAMES}
    return Settings(
        root=machine_layer.get("root", "/"),
        machine=machine_layer.get("machine"),
        socket=chosen["socket"] or default_socket(environ),
        listen=_listen(chosen["listen"] or DEFAULT_LISTEN),
        reserved_cpus=_cpus(chosen["reserved_cpus"] or ""),
        log_format=_log_format(chosen["log_format"] or "text"),
    )


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return where the daemon's socket is, for root and for everybody else."""
    if os.geteuid() == 0:
        return "/run/affinityd/affinityd.sock"
    folder = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    return f"{folder}/affinityd.sock"


def _variables(values: Mapping[str, str]) -> dict[str, str]:
    """Return the settings among variables; an empty one is not set."""
    return {name: value for name in NAMES if (value := values.get(PREFIX + name.upper()))}


def _read_file(path: Path) -> dict[str, str]:
    """Read the file's assignments; one that is not there has none."""
    try:
        if not path.is_file() and path.exists():
            raise InvalidRequestError(f"{path} is not a file")
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{path} is not UTF-8") from None
    return dict(
        _assignment(line, f"{path}:{number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith(("#", ";"))
    )


def _assignment(line: str, place: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in line.partition("="))
    shown = quote(line.strip())
    if not equals or not name.isidentifier():
        raise InvalidRequestError(f"{place}: {shown} is not written as NAME=value")
    setting = name.removeprefix(PREFIX).lower()
    if name.startswith(PREFIX) and setting not in NAMES:
        known = ", ".join(PREFIX + known.upper() for known in NAMES)
        raise InvalidRequestError(f"{place}: {quote(name)} is no setting; there are {known}")
    try:
        return name, " ".join(shlex.split(value))
    except ValueError as error:
        raise InvalidRequestError(f"{place}: {shown}: {error}") from None


def _listen(text: str) -> tuple[str, int] | None:
    if text == "none":
        return None
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= len(str(MAX_PORT))
    if not (colon and host and is_port and int(port) <= MAX_PORT):
        raise InvalidRequestError(
            f"listen: {quote(text)} is not HOST:PORT; write it like {DEFAULT_LISTEN}, or none"
        )
    return host.strip("[]"), int(port)


def _cpus(text: str) -> CpuSet:
    try:
        return parse_list(text)
    except ValueError as error:
        raise InvalidRequestError(f"reserved-cpus: {error}") from None


def _log_format(text: str) -> str:
    if text not in {"text", "json"}:
        raise InvalidRequestError(f"log-format: {quote(text)} is neither text nor json")
    return text
