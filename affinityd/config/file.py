"""The settings file, /etc/affinityd.conf, and where the daemon's socket is.

The file is written as a systemd EnvironmentFile, systemd.exec(5).
"""

# ruff: noqa: PTH110 - pathlib costs more to import than Python to start

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping

from affinityd.config import switch
from affinityd.errors import InvalidRequestError
from affinityd.text import quote

DEFAULT_PATH = "/etc/affinityd.conf"
PREFIX = "AFFINITYD_"
SYSTEM_SOCKET = "/run/affinityd/affinityd.sock"
NODE_FILE = "node.json"  #: beside the socket: the daemon's topology
RUNTIME_FOLDERS = "/run/user"  #: pam_systemd(8)
#: The parameters of a plan that a site or user may also set as AFFINITYD_*.
PLAN_PARAMETERS = (
    *("mode", "scope", "multithreading", "balanced", "min_physical_cores", "max_physical_cores"),
    *("share", "strict"),
)
#: Their variables; that of a task's number of CPUs has a shorter name.
PARAMETER_VARIABLES = {
    **{name: f"{PREFIX}{name.upper()}" for name in PLAN_PARAMETERS},
    "task_cpus": f"{PREFIX}CPUS",
}
MAX_FILE = 1024 * 1024  #: bytes
QUOTING = frozenset("'\"\\")


def path(environ: Mapping[str, str] = os.environ) -> str:
    """Return where the settings file is."""
    return environ.get("AFFINITYD_CONFIG") or DEFAULT_PATH


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return where a daemon of this user listens."""
    return SYSTEM_SOCKET if os.geteuid() == 0 else f"{runtime_folder(environ)}/affinityd.sock"


def runtime_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return this user's folder for sockets, mode 0700: XDG Base Directory Specification."""
    return environ.get("XDG_RUNTIME_DIR") or f"{RUNTIME_FOLDERS}/{os.geteuid()}"


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AFFINITYD_* variables: the environment's, else the file's, without empty ones.

    Raises InvalidRequestError for a file that cannot be read.
    """
    layers = (read(path(environ)), environ)
    return {
        name: text
        for layer in layers
        for name, text in layer.items()
        if name.startswith(PREFIX) and text
    }


def plan_parameters(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a plan that AFFINITYD_* variables choose."""
    return {
        name: variables[variable]
        for name, variable in PARAMETER_VARIABLES.items()
        if variable in variables
    }


def chosen_switch(environ: Mapping[str, str] = os.environ) -> str:
    """Return the AFFINITYD that counts here: the least of the environment's and the file's.

    Raises InvalidRequestError for another word, or a file that cannot be read.
    """
    own = switch.read(environ.get(switch.VARIABLE, ""))
    if own == switch.OFF:  # no file can change that
        return own
    name = path(environ)
    site = read(name).get(switch.VARIABLE, "")
    return switch.least(own, switch.read(site, f"{switch.VARIABLE} in {name}"))


def sockets(variables: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return where a client looks for a daemon, by its AFFINITYD_* variables.

    The configured socket; without one, root's, then its user's own.
    """
    configured = variables.get(f"{PREFIX}SOCKET")
    return [configured] if configured else list({SYSTEM_SOCKET: 1, default_socket(environ): 1})


def read(name: str) -> dict[str, str]:
    """Read the file's assignments; a missing file has none. Raises InvalidRequestError."""
    if not os.path.exists(name):
        return {}
    from affinityd.linux.files import read_regular  # noqa: PLC0415 - many nodes have no such file

    try:
        data = read_regular(name, MAX_FILE)
    except OSError as error:
        raise InvalidRequestError(f"{name} cannot be read: {error.strerror}") from None
    try:
        text = data.removeprefix(codecs.BOM_UTF8).decode().replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{name} is not UTF-8") from None
    if "\0" in text:
        raise InvalidRequestError(f"{name} has a NUL in it")
    text = text.replace("\\\n", "")
    return dict(
        _assignment(line, f"{name}:{number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip() and not line.lstrip().startswith(("#", ";"))
    )


def _assignment(line: str, place: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in line.partition("="))
    shown = quote(name if equals else name.split()[0])  # the rest may be a secret
    if not equals or not name.isidentifier():
        raise InvalidRequestError(f"{place}: {shown} is not written as NAME=value")
    try:
        return name, " ".join(_words(value))
    except ValueError as error:
        raise InvalidRequestError(f"{place}: {shown}: {error}") from None


def _words(value: str) -> list[str]:
    """Split a value as a shell would. Raises ValueError."""
    if not QUOTING & set(value):
        return value.split()
    import shlex  # noqa: PLC0415 - costs as much as to start Python, and is hardly ever needed

    return shlex.split(value)
