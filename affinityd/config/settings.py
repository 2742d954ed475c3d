"""Settings of the daemon and its clients: flag, else AFFINITYD_* variable, else the file."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from affinityd import config
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.text import quote
from affinityd.text import whole_number as number_of

DEFAULT_LISTEN = ("127.0.0.1", 9465)
EXCLUSIVE = {"root", "machine"}  #: settings that exclude each other
OFF = "off"
MEASURED = "/var/lib/affinityd/measure.json"  #: where `affinityd measure --save` leaves its result
#: The values of `enforce`: it is off, or reports what it would pin, or pins.
OBSERVE, PIN = "observe", "pin"
ENFORCE_VALUES = (OFF, OBSERVE, PIN)
REPLAYS = "replays another machine"  #: why a setting contradicts another
MAX_INTERVAL = 3600  #: seconds
MAX_JOB_SERIES = 1000


#: Reads a text; raises ValueError, one line that quotes it.
Reader = Callable[[str], Any]

MAX_PORT = 65535
MAX_ID = 2**32 - 2  #: of a user or group; the last number means none, chown(2)
MAX_NAME = 253  #: characters of a DNS name, RFC 1035, and so of a node of Kubernetes


def one_of(*values: str) -> Reader:
    """Return a reader of one of several words."""
    is_pair = len(values) == 2  # noqa: PLR2004
    known = f"neither {' nor '.join(values)}" if is_pair else f"none of {', '.join(values)}"

    def read(text: str) -> str:
        if text not in values:
            raise ValueError(f"{quote(text)} is {known}")
        return text

    return read


def whole_number(within: range, unit: str) -> Reader:
    """Return a reader of a number of a range; `unit` ends the error's line."""

    def read(text: str) -> int:
        if not (_is_number(text, within[-1]) and int(text) in within):
            known = f"a whole number from {within[0]} to {within[-1]}{unit}"
            raise ValueError(f"{quote(text)} is not {known}")
        return int(text)

    return read


def unless(word: str, reader: Reader) -> Reader:
    """Return a reader that also takes a word that means None."""
    return lambda text: None if text == word else reader(text)


def node_name(text: str) -> str:
    """Read the name of a node."""
    if not text.isprintable() or len(text) > MAX_NAME:
        raise ValueError(
            f"{quote(text)} is not a node's name; give a line of {MAX_NAME} characters at most"
        )
    return text


def names(text: str) -> frozenset[str]:
    """Read names, separated by commas."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def absolute(text: str) -> str:
    """Read an absolute path."""
    if not text.startswith("/"):
        raise ValueError(f"{quote(text)} is no absolute path, as /run/affinityd is")
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and _is_number(port, MAX_PORT)):
        raise ValueError(f"{quote(text)} is not HOST:PORT; write it like 127.0.0.1:9465, or none")
    return host.strip("[]"), int(port)


def group(text: str) -> int:
    """Read a group's name, or its number, even of no existing group."""
    return _account(text, "group", lambda: grp.getgrnam(text).gr_gid)


def _account(text: str, kind: str, look_up: Callable[[], int]) -> int:
    try:
        return int(text) if _is_number(text, MAX_ID) else look_up()
    except (KeyError, ValueError):  # the latter if it cannot be a name
        raise ValueError(
            f"there is no {kind} {quote(text)} here; give a {kind}'s name or number"
        ) from None


def _is_number(text: str, most: int) -> bool:
    return number_of(text, most) is not None


@dataclass(frozen=True)
class Setting:
    """How a setting is read, and its help."""

    metavar: str
    help: str
    read: Reader = str


#: By name. `{machines}` are the shipped machines' names.
SETTINGS: Mapping[str, Setting] = {
    "root": Setting(
        "DIR|ARCHIVE", "the machine's files: a captured folder or archive (default: /)"
    ),
    "machine": Setting("NAME", "a built-in machine instead: {machines}"),
    "node_name": Setting("NAME", "the name of this node (default: its host name)", node_name),
    "socket": Setting("PATH", "the unix socket (default, as root: /run/affinityd/affinityd.sock)"),
    "listen": Setting(
        "HOST:PORT|none",
        "the TCP address (default: 127.0.0.1:9465)",
        unless("none", host_and_port),
    ),
    "listen_plan": Setting(
        "HOST:PORT|none",
        "a TCP address that answers only GET /plan (default: none)",
        unless("none", host_and_port),
    ),
    "reserved_cpus": Setting("LIST", "CPUs that no plan uses, like 0,64", parse_list),
    "scan_interval": Setting(
        "SECONDS|off",
        "how often the GPUs' processes are scanned (default: 15)",
        unless(OFF, whole_number(range(1, MAX_INTERVAL + 1), " seconds, or off")),
    ),
    "job_series": Setting(
        "N",
        "how many jobs have metrics of their own (default: 0)",
        whole_number(range(MAX_JOB_SERIES + 1), " jobs"),
    ),
    "admin_group": Setting(
        "NAME|GID",
        "the group that sees all users' processes, as root does (default: none)",
        group,
    ),
    "enforce": Setting(
        "off|observe|pin",
        (
            "pin GPU jobs that run far from their GPUs, or only report what that would "
            "do (default: off)"
        ),
        one_of(*ENFORCE_VALUES),
    ),
    "enforce_policy": Setting(
        "FILE",
        "which jobs, and how (default: /etc/affinityd-policy.toml, if it exists)",
    ),
    "pod_resources": Setting(
        "SOCKET|off",
        "kubelet's podresources socket, which names the pods of processes (default: off)",
        unless(OFF, str),
    ),
    "nri": Setting(
        "SOCKET|off",
        "the container runtime's NRI socket: adjust containers with GPUs (default: off)",
        unless(OFF, str),
    ),
    "nri_namespaces": Setting(
        "NAMES", "the namespaces of these containers, or * (default: pods with a label)", names
    ),
    "nri_mount": Setting(
        "DIR|off",
        "the node's folder of the daemon's socket, mounted in these containers (default: off)",
        unless(OFF, absolute),
    ),
    "measured": Setting(
        "FILE|off",
        f"a result of affinityd measure, to weigh remote CPU time by (default: {MEASURED})",
        unless(OFF, str),
    ),
    "log_format": Setting(
        "text|json", "the format of log lines (default: text)", one_of("text", "json")
    ),
}
NAMES = tuple(SETTINGS)
#: Settings of the daemon only; clients ignore them in variables and file.
DAEMON_ONLY = frozenset(
    (
        *("enforce", "enforce_policy", "pod_resources"),
        *("nri", "nri_mount", "nri_namespaces", "measured"),
    )
)


@dataclass(frozen=True)
class Settings:
    """Every setting, checked."""

    root: str = "/"
    machine: str | None = None  #: a shipped machine, instead of `root`
    node_name: str | None = None  #: this machine's name; None: that of uname(2)
    socket: str = "affinityd.sock"
    listen: tuple[str, int] | None = None  #: host and port; None: no TCP
    listen_plan: tuple[str, int] | None = None  #: the address that answers only GET /plan
    reserved_cpus: CpuSet = frozenset()
    scan_interval: int | None = 15  #: seconds; None: processes are not looked at
    job_series: int = 0  #: how many jobs have metrics of their own
    admin_group: int | None = None  #: gid of users that see every process; None: only root does
    enforce: str = OFF  #: of ENFORCE_VALUES
    enforce_policy: str | None = None  #: a file that has to be there; None: the usual one, if it is
    pod_resources: str | None = None  #: kubelet's socket; None: kubelet is not asked
    nri: str | None = None  #: the runtime's socket; None: no container is adjusted
    nri_namespaces: frozenset[str] = frozenset()  #: `*` is all of them
    nri_mount: str | None = None  #: a folder of the node; None: none is mounted
    measured: str | None = MEASURED  #: a file that need not be there; None: none is read
    log_format: str = "text"
    switch: str = config.ON  #: AFFINITYD, of the daemon only: its word to clients

    @property
    def replays(self) -> bool:
        """Whether the machine is not this one."""
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
    """Return the settings. `flags` are the command line's; only those in `names` count.

    Raises InvalidRequestError with one line that names the value and its source.
    """
    path = config.path(environ)
    in_file = _variables(config.read_file(path), f" in {path}")
    chosen: dict[str, SettingText] = {}
    for whole in (_flags(flags), _variables(environ), in_file):
        layer = {name: given for name, given in whole.items() if name in names}
        if layer.keys() >= EXCLUSIVE:
            names = " and ".join(layer[name].name for name in sorted(EXCLUSIVE, reverse=True))
            raise InvalidRequestError(f"{names} both name a machine; give one of them")
        settled = EXCLUSIVE if chosen.keys() & EXCLUSIVE else set()
        chosen = {**{name: layer[name] for name in layer.keys() - settled}, **chosen}
    values = {name: _value(name, it) for name, it in chosen.items()}
    made = Settings(
        **{"socket": config.default_socket(environ), "listen": DEFAULT_LISTEN, **values}
    )
    if made.enforce != OFF:
        _check_enforce(made, chosen)
    if made.nri is not None and made.replays:
        _refuse(chosen["nri"], "containers", "nri", _replaying(chosen), REPLAYS)
    return made


def _value(name: str, given: SettingText) -> Any:  # noqa: ANN401 - of Settings
    try:
        return SETTINGS[name].read(given.text)
    except ValueError as error:
        raise InvalidRequestError(f"{given.name}: {error}") from None


def _check_enforce(settings: Settings, chosen: Mapping[str, SettingText]) -> None:
    """Raise InvalidRequestError if there are no processes to pin."""
    if settings.replays:
        _refuse(chosen["enforce"], "processes", "enforce", _replaying(chosen), REPLAYS)
    if settings.scan_interval is None:
        interval = chosen["scan_interval"]
        _refuse(chosen["enforce"], "processes", "enforce", interval, "turns scans off")


def _replaying(chosen: Mapping[str, SettingText]) -> SettingText:
    return chosen.get("machine") or chosen["root"]


def _refuse(given: SettingText, needed: str, flag: str, other: SettingText, why: str) -> NoReturn:
    raise InvalidRequestError(
        f"{given.name}: {quote(given.text)} needs this machine's {needed}, and {other.name} {why}; "
        f"give --{flag} off, or leave {other.name} out"
    )


def _flags(flags: Mapping[str, str | None]) -> dict[str, SettingText]:
    given = {name: text for name in NAMES if (text := flags.get(name)) is not None}
    names = {name: f"--{name.replace('_', '-')}" for name in given}
    if empty := next((names[name] for name, text in given.items() if not text), None):
        raise InvalidRequestError(f"{empty} is empty; give it a value")
    return {name: SettingText(text, names[name]) for name, text in given.items()}


def _variables(values: Mapping[str, str], where: str = "") -> dict[str, SettingText]:
    """Return the settings among variables; an empty one is not set."""
    names = {name: config.PREFIX + name.upper() for name in NAMES}
    return {
        name: SettingText(text, variable + where)
        for name, variable in names.items()
        if (text := values.get(variable))
    }
