"""Settings of the daemon and its clients, from flags, else AFFINITYD_* variables, else the file."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from affinityd import config
from affinityd.cpuset import CpuSet, parse_list
from affinityd.errors import InvalidRequestError
from affinityd.text import one_of, quote
from affinityd.text import whole_number as number_of

#: Reads a text. Raises ValueError with one line that quotes the text.
Reader = Callable[[str], Any]

DEFAULT_LISTEN = ("127.0.0.1", 9465)


def whole_number(within: range, unit: str) -> Reader:
    """Return a reader of a number within a range; `unit` ends the error message."""

    def read(text: str) -> int:
        number = number_of(text, within[-1])
        if number is None or number not in within:
            limits = f"from {within[0]} to {within[-1]}{unit}"
            raise ValueError(f"{quote(text)} is not a whole number {limits}")
        return number

    return read


def unless(word: str, reader: Reader) -> Reader:
    """Return a reader that also takes a word that means None."""

    def read(text: str) -> object:
        if text == word:
            return None
        return reader(text)

    return read


def node_name(text: str) -> str:
    """Read the name of a node."""
    most = 253  # characters of a DNS name, RFC 1035, and of a Kubernetes node
    if not text.isprintable() or len(text) > most:
        raise ValueError(
            f"{quote(text)} is not a node's name; give a line of {most} characters at most"
        )
    return text


def host_and_port(text: str) -> tuple[str, int]:
    """Read HOST:PORT."""
    host, colon, port = text.rpartition(":")
    if not (colon and host) or number_of(port, 65535) is None:
        raise ValueError(f"{quote(text)} is not HOST:PORT; write it like 127.0.0.1:9465, or none")
    return host.strip("[]"), int(port)


def group(text: str) -> int:
    """Read a group's name or number; the number may be of a group that does not exist."""
    number = number_of(text, 2**32 - 2)  # the last gid means none, chown(2)
    if number is not None:
        return number
    try:
        return grp.getgrnam(text).gr_gid
    except (KeyError, ValueError):  # ValueError: the text cannot be a name
        raise ValueError(
            f"there is no group {quote(text)} here; give a group's name or number"
        ) from None


def namespaces(text: str) -> Mapping[str, Mapping[str, str]]:
    """Read namespaces, separated by commas, each with its choices, like `a,b mode=socket`."""
    choices_of: dict[str, dict[str, str]] = {}
    for part in text.split(","):
        words = part.split()
        if words:
            choices = {}
            for word in words[1:]:
                name, _, choice = word.partition("=")
                choices[name] = choice
            choices_of[words[0]] = choices
    return choices_of


def _on_or_off(text: str) -> bool:
    return one_of(config.ON, config.OFF)(text) == config.ON


class Setting(NamedTuple):
    """The reader of a setting, and its help text."""

    metavar: str
    help: str
    read: Reader


def _setting(default: object, metavar: str, text: str, read: Reader = str) -> Any:  # noqa: ANN401
    return field(default=default, metadata={"setting": Setting(metavar, text, read)})


def _choice(values: tuple[str, ...], text: str) -> Any:  # noqa: ANN401
    return _setting(values[0], "|".join(values), text, one_of(*values))


@dataclass(frozen=True)
class Settings:
    """Every setting, checked. `{machines}` in a help text stands for the built-in machines."""

    root: str = _setting("/", "DIR", "the folder of a captured machine's files (default: /)")
    machine: str | None = _setting(
        None, "NAME|FILE.json", "a built-in machine instead: {machines}; or a file with such facts"
    )
    node_name: str | None = _setting(
        None, "NAME", "the name of this node (default: its host name)", node_name
    )
    socket: str = _setting(
        "affinityd.sock", "PATH", f"the unix socket (default, as root: {config.SYSTEM_SOCKET})"
    )
    #: Host and port; None: no TCP. The same holds for `metrics_listen`.
    listen: tuple[str, int] | None = _setting(
        None,
        "HOST:PORT|none",
        "the TCP address (default: 127.0.0.1:9465)",
        unless("none", host_and_port),
    )
    listen_plan: tuple[str, int] | None = _setting(
        None,
        "HOST:PORT|none",
        "a TCP address that answers only GET /plan (default: none)",
        unless("none", host_and_port),
    )
    reserved_cpus: CpuSet = _setting(  # noqa: RUF009
        frozenset(), "LIST", "CPUs that no plan uses, like 0,64", parse_list
    )
    #: Seconds; None: no scans.
    scan_interval: int | None = _setting(
        15,
        "SECONDS|off",
        "how often the GPUs' processes are scanned (default: 15)",
        unless(config.OFF, whole_number(range(1, 3601), " seconds, or off")),
    )
    job_series: int = _setting(
        0,
        "N",
        "how many jobs have metrics of their own (default: 0)",
        whole_number(range(1001), " jobs"),
    )
    #: Gid of the group whose members see every process; None: only root does.
    admin_group: int | None = _setting(
        None,
        "NAME|GID",
        "the group that sees all users' processes, as root does (default: none)",
        group,
    )
    pod_resources: str | None = _setting(
        None,
        "SOCKET|off",
        "kubelet's podresources socket, which names the pods of processes (default: off)",
        unless(config.OFF, str),
    )
    nri: str | None = _setting(
        None,
        "SOCKET|off",
        "the container runtime's NRI socket: adjust containers with GPUs (default: off)",
        unless(config.OFF, str),
    )
    #: Namespace → the default choices of its pods.
    nri_namespaces: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict,
        metadata={
            "setting": Setting(
                "NAMES",
                "the namespaces of containers to adjust, or *, each with choices, like a,b "
                "mode=socket (default: pods with a label)",
                namespaces,
            )
        },
    )
    nri_mount: bool = _setting(
        False,  # noqa: FBT003
        "on|off",
        "whether their containers get a mount of the daemon's socket's folder (default: off)",
        _on_or_off,
    )
    nri_without_request: str = _choice(
        ("share", "keep"),
        "what containers without a CPU request get: their GPUs' part of the node's CPUs (share), "
        "or all CPUs that they have (keep) (default: share)",
    )
    log_format: str = _choice(("text", "json"), "the format of log lines (default: text)")
    switch: str = config.ON  #: AFFINITYD of the daemon alone, which the daemon tells its clients

    @property
    def replays(self) -> bool:
        """Whether the machine is another one than this."""
        return self.machine is not None or os.path.realpath(self.root) != "/"


SETTINGS: Mapping[str, Setting] = {
    setting.name: setting.metadata["setting"] for setting in fields(Settings) if setting.metadata
}
SETTING_NAMES = tuple(SETTINGS)
#: Settings of the daemon only; clients ignore them in variables and file.
DAEMON_ONLY = {"pod_resources", "nri", "nri_mount", "nri_namespaces", "nri_without_request"}


class SettingText(NamedTuple):
    """A setting's text, and its source for messages: `--root`, AFFINITYD_ROOT, or a file's line."""

    text: str
    source: str
    layer: int  #: 0: a flag, 1: a variable, 2: the file


def load(
    flags: Mapping[str, str | None],
    environ: Mapping[str, str] = os.environ,
    names: Collection[str] = SETTING_NAMES,
) -> Settings:
    """Return the settings. `flags` are the command line's; only those in `names` count.

    Raises InvalidRequestError with one line that names the value and its source.
    """
    path = config.path(environ)
    in_file = config.read_file(path)
    for name in SETTING_NAMES:
        if flags.get(name) == "":
            raise InvalidRequestError(f"--{name.replace('_', '-')} is empty; give it a value")
    chosen: dict[str, SettingText] = {}
    for name in names:
        variable = config.PREFIX + name.upper()
        sources = (
            (flags.get(name), f"--{name.replace('_', '-')}"),
            (environ.get(variable), variable),
            (in_file.get(variable), f"{variable} in {path}"),
        )
        for layer, (text, source) in enumerate(sources):
            if text and name not in chosen:  # an empty variable counts as unset
                chosen[name] = SettingText(text, source, layer)
    root = chosen.get("root")
    machine = chosen.get("machine")
    if root and machine:
        if root.layer == machine.layer:
            both = f"{root.source} and {machine.source}"
            raise InvalidRequestError(f"{both} both name a machine; give one of them")
        del chosen["root" if root.layer > machine.layer else "machine"]
    values: dict[str, Any] = {"socket": config.default_socket(environ), "listen": DEFAULT_LISTEN}
    for name, setting in chosen.items():
        values[name] = _value(name, setting)
    settings = Settings(**values)
    if settings.nri is not None and settings.replays:
        raise InvalidRequestError(
            f"{chosen['nri'].source} needs this machine's containers, and another machine is "
            "replayed; leave one of them out"
        )
    return settings


def _value(name: str, setting: SettingText) -> Any:  # noqa: ANN401 - of Settings
    try:
        return SETTINGS[name].read(setting.text)
    except ValueError as error:
        raise InvalidRequestError(f"{setting.source}: {error}") from None
