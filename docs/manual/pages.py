"""affinityd(1) and affinityd.conf(5), man-pages(7)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

from affinityd import __version__, config, machines
from affinityd.cli import COMMANDS
from affinityd.cli.commands.exec import CLIENT_OPTIONS
from affinityd.config.settings import SETTINGS
from affinityd.request.parameters import PARAMETERS
from docs.manual.commands import Command, Option

#: What roff(7) would read as its own, or print as another character.
ESCAPES = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", "…": "..."}
)
#: Variables of jobs that are no parameters of a plan.
JOBS = {
    "AFFINITYD_CPUS": ("N|none", "how many CPUs each task asked for, instead of the scheduler's"),
    "AFFINITYD_THREADS": ("auto", CLIENT_OPTIONS["threads"][1]),
    "AFFINITYD_OWN": ("on|off", CLIENT_OPTIONS["own"][1]),
    **{f"AFFINITYD_{name.upper()}": CLIENT_OPTIONS[name] for name in ("memory", "nics", "timeout")},
}
SWITCH = """\
Whether processes are pinned. observe changes no mask and says where each would run. The job's
environment, this file and the daemon's environment may each set it; the lowest of them applies."""
FORMAT = """\
Settings of the daemon and of all commands on this node. The file is written like a systemd
EnvironmentFile: a NAME=value on each line, and comments that begin with # or ;. A flag overrides a
variable of the environment, which overrides the file. AFFINITYD_CONFIG names another file. Other
names are ignored; affinityd doctor daemon finds misspelled ones."""
RESTART = """\
Commands read the file when they start. After a change restart the daemon; no process is moved:"""


def text(words: str) -> str:
    """Return words as roff has them."""
    return "\n".join(
        f"\\&{it}" if it.startswith(".") else it for it in words.translate(ESCAPES).split("\n")
    )


def bold(words: str) -> str:
    """Return words as they are typed."""
    return f"\\fB{text(words)}\\fR"


def place(words: str) -> str:
    """Return a placeholder."""
    return f"\\fI{text(words)}\\fR".replace("|", r"|\:")  # where a long line may break


def item(head: str, *body: str) -> list[str]:
    """Return a paragraph with a head."""
    return [".TP", head, *map(text, body)]


def page(name: str, section: int, about: str, lines: Sequence[str]) -> str:
    """Return a page with its header; its date is that of the release, SOURCE_DATE_EPOCH."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    date = time.strftime("%Y-%m-%d", time.gmtime(int(epoch))) if epoch else ""
    title = "User Commands" if section == 1 else "File Formats"
    header = f'.TH {text(name).upper()} {section} "{date}" "affinityd {__version__}" "{title}"'
    setup = [header, ".nh", ".ad l"]  # names of variables stay whole
    return "\n".join([*setup, ".SH NAME", f"{text(name)} \\- {text(about)}", *lines, ""])


def of_commands(commands: Sequence[Command]) -> str:
    """Return affinityd(1)."""
    lines = [
        ".SH SYNOPSIS",
        f"{bold('affinityd')} {place('COMMAND')} [{place('OPTION')} ...]",
        ".SH DESCRIPTION",
        text("Runs each GPU's process on the CPUs near that GPU, and checks that it stays there."),
        text("Commands without a daemon plan by themselves."),
    ]
    for name, about in COMMANDS.items():
        lines += item(bold(name), about)
    lines.append(".SH COMMANDS")
    for command in commands:
        lines += _command(command)
    lines += [
        ".SH EXIT STATUS",
        *item("0", "Done. Of verify, audit and others that judge: nothing is wrong."),
        *item("1", "It cannot be done, or something is wrong."),
        *item("2", "The command line is wrong. Of verify: it cannot be judged."),
        *item(
            "125, 126, 127",
            "Of exec: affinityd failed, CMD cannot be run, CMD is not found; as env(1).",
        ),
        ".SH FILES",
        *item(place(config.DEFAULT_PATH), "Settings: see affinityd.conf(5)."),
        *item(place(config.SYSTEM_SOCKET), "The socket of root's daemon."),
        ".SH SEE ALSO",
        ".BR affinityd.conf (5),",
        ".BR numactl (8),",
        ".BR taskset (1),",
        ".BR cpuset (7)",
    ]
    return page("affinityd", 1, "the CPUs and memory near each GPU rank", lines)


def _command(command: Command) -> Iterator[str]:
    yield f".SS {bold(command.usage)}"
    yield text(command.about)
    for group in command.groups:
        options = [it for it in group.options if it.names != ("-h", "--help")]
        if not options:
            continue
        if group.title not in {"options", "positional arguments"}:
            about = f": {group.about}" if group.about else ""
            yield ".PP"
            yield text(f"{group.title[0].upper()}{group.title[1:]}{about}")
        for option in options:
            yield from item(_head(option), option.help)
    if command.epilog:
        is_table = "\n" in command.epilog
        yield from (".PP", *([".nf"] if is_table else []), text(command.epilog))
        yield from [".fi"] if is_table else []


def _head(option: Option) -> str:
    value = place(option.value) if option.value else ""
    if not option.names:
        return value
    names = ", ".join(map(bold, option.names))
    if option.value and option.may_be_absent:
        return f"{names}[={value}]"
    return f"{names} {value}".rstrip()


def of_settings() -> str:
    """Return affinityd.conf(5)."""
    lines = [
        ".SH SYNOPSIS",
        place(config.DEFAULT_PATH),
        ".SH DESCRIPTION",
        text(FORMAT),
        ".PP",
        text(RESTART),
        *(".PP", ".nf", ".RS", text("systemctl restart affinityd"), ".RE", ".fi"),
        ".SH SETTINGS OF THE DAEMON",
        text("Each is also a flag of affinityd serve."),
    ]
    for name, setting in SETTINGS.items():
        about = setting.help.format(machines=", ".join(machines.NAMES))
        lines += _variable(f"{config.PREFIX}{name.upper()}", setting.metavar, about)
    lines += [
        ".SH WHAT JOBS GET",
        text("A variable in a job's environment overrides the file, except for AFFINITYD."),
        *_variable(config.SWITCH, "|".join(reversed(config.SWITCHES)), SWITCH),
    ]
    for name, variable in config.PARAMETER_VARIABLES.items():
        parameter = PARAMETERS[name]
        is_boolean = parameter.schema["type"] == "boolean"
        words = ("true", "false") if is_boolean else parameter.schema.get("enum", ("N",))
        lines += _variable(variable, "|".join(words), parameter.help)
    for variable, (value, about) in JOBS.items():
        lines += _variable(variable, value or "", about)
    lines += [
        ".SH SEE ALSO",
        ".BR affinityd (1),",
        ".BR systemd.exec (5)",
    ]
    return page("affinityd.conf", 5, "settings of affinityd", lines)


def _variable(name: str, value: str, about: str) -> list[str]:
    return item(f"{bold(name)}={place(value)}", about)
