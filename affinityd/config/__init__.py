"""The settings file, AFFINITYD_* variables, the places of daemons' sockets, and the switch.

The file, /etc/affinityd.conf, has lines NAME=value, comments after # or ;, and nothing else; a pair
of quotes around a value is removed. `read_settings` in slurm/pinning.sh reads this form, and so can
systemd's EnvironmentFile=. The switch is AFFINITYD=on|observe|off: whether plans are applied. A
job's environment, the settings file and the daemon may each set it; the strictest counts: off, then
observe, then on. `slurm/task_prolog.sh` and `kubernetes/run.sh` read the same words.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from affinityd.errors import InvalidRequestError
from affinityd.linux.files import read_regular
from affinityd.text import quote

DEFAULT_PATH = "/etc/affinityd.conf"
PREFIX = "AFFINITYD_"
SYSTEM_SOCKET = "/run/affinityd/affinityd.sock"
NODE_FILE = "node.json"  #: file beside the socket with the daemon's topology
#: The parameters of a plan that a site or user may also set as AFFINITYD_*.
PLAN_PARAMETERS = (
    "mode",
    "scope",
    "multithreading",
    "balanced",
    "min_physical_cores",
    "max_physical_cores",
    "share",
    "strict",
)
PARAMETER_VARIABLES = {name: f"{PREFIX}{name.upper()}" for name in PLAN_PARAMETERS}
CPUS = f"{PREFIX}CPUS"  #: how many CPUs each task asked for, if known
CHOOSE_GPU = f"{PREFIX}CHOOSE_GPU"  #: whether the GPUs near a rank's CPUs are chosen for it
GPU_ORDER = f"{PREFIX}GPU_ORDER"  #: which GPU each rank uses, where affinityd does not choose
BLANKS = " \t\r\v\f"  #: blanks that are removed around a line, a name and a value

SWITCH = "AFFINITYD"
OFF = "off"  #: affinityd changes no process
OBSERVE = "observe"  #: affinityd changes no mask; it exports each plan, and counts it
ON = "on"
SWITCHES = (OFF, OBSERVE, ON)  #: the strictest first

YES = ("true", "1", "yes", "on")  #: values that mean yes
_SWITCH_WORDS = {
    "off": OFF,
    "0": OFF,
    "no": OFF,
    "false": OFF,
    "observe": OBSERVE,
    "on": ON,
    "1": ON,
    "yes": ON,
    "true": ON,
    "": ON,
}


def path(environ: Mapping[str, str] = os.environ) -> str:
    """Return where the settings file is."""
    return environ.get("AFFINITYD_CONFIG") or DEFAULT_PATH


def default_socket(environ: Mapping[str, str] = os.environ) -> str:
    """Return where a daemon of this user listens."""
    if os.geteuid() == 0:
        return SYSTEM_SOCKET
    return f"{runtime_folder(environ)}/affinityd.sock"


def runtime_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return this user's folder for sockets, mode 0700: XDG Base Directory Specification."""
    return environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"


def sockets(variables: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the sockets at which a client looks for a daemon, by its AFFINITYD_* variables.

    They are the configured socket; if no socket is configured, root's and then the user's own.
    """
    configured = variables.get(f"{PREFIX}SOCKET")
    if configured:
        return [configured]
    own = default_socket(environ)
    return [SYSTEM_SOCKET] if own == SYSTEM_SOCKET else [SYSTEM_SOCKET, own]


def variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the AFFINITYD_* variables: the environment's, else the file's, without empty ones.

    Raises InvalidRequestError for a file that cannot be read.
    """
    texts: dict[str, str] = {}
    for layer in (read_file(path(environ)), environ):
        texts |= {name: text for name, text in layer.items() if text and name.startswith(PREFIX)}
    return texts


def plan_parameters(
    variables: Mapping[str, str], options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the parameters of a plan, and the variables about it that are no parameters.

    A parameter is taken from the options, else from its AFFINITYD_* variable.
    """
    options = options or {}
    chosen = {}
    for name, variable in PARAMETER_VARIABLES.items():
        if variable in variables:
            chosen[name] = variables[variable]
    for variable, parameter in ((CPUS, "cpus"), (CHOOSE_GPU, "choose"), (GPU_ORDER, "gpus")):
        if variable in variables and parameter not in options:
            chosen[variable] = variables[variable]
    return {**chosen, **options}


def chosen_switch(environ: Mapping[str, str] = os.environ) -> str:
    """Return the switch that applies here: the strictest of the environment's and the file's.

    Raises InvalidRequestError for another word, or a file that cannot be read.
    """
    switch = read_switch(environ.get(SWITCH, ""))
    if switch == OFF:  # the file cannot undo off
        return switch
    name = path(environ)
    of_site = read_file(name).get(SWITCH, "")
    return least_switch(switch, read_switch(of_site, f"{SWITCH} in {name}"))


def read_switch(text: str, name: str = SWITCH) -> str:
    """Return the meaning of a value; an empty value is on. Raises InvalidRequestError."""
    try:
        return _SWITCH_WORDS[text.lower()]
    except KeyError:
        raise InvalidRequestError(f"{name}: {quote(text)} is none of on, observe, off") from None


def read_switch_or_off(text: str) -> str:
    """Return the meaning of another process's value; an unknown word counts as off."""
    return _SWITCH_WORDS.get(text.lower(), OFF)


def least_switch(*switches: str) -> str:
    """Return the strictest of several switches: off, else observe, else on."""
    return min(switches, key=SWITCHES.index)


def read_file(name: str) -> dict[str, str]:
    """Read a file's assignments; a missing file has no assignments. Raises InvalidRequestError."""
    try:
        data = read_regular(name, 1024 * 1024)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise InvalidRequestError(f"{name} cannot be read: {error.strerror}") from None
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{name} is not UTF-8") from None
    assignments = {}
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.strip(BLANKS)
        if content and not content.startswith(("#", ";")):
            variable, value = _assignment(content, f"{name}:{number}")
            assignments[variable] = value
    return assignments


def _assignment(line: str, place: str) -> tuple[str, str]:
    name, equals, value = line.partition("=")
    name = name.strip(BLANKS)
    value = value.strip(BLANKS)
    if not equals or not name.isascii() or not name.isidentifier():
        if not equals:
            name = name.split()[0]  # show only the first word: the rest may be a secret
        raise InvalidRequestError(f"{place}: {quote(name)} is not written as NAME=value")
    if len(value) > 1 and value[0] == value[-1] and value[0] in {"'", '"'}:
        value = value[1:-1]
    if any(character in value for character in "'\"\\\0"):
        raise InvalidRequestError(
            f"{place}: {quote(name)} has a quote, a backslash or a NUL in its value"
        )
    return name, value
