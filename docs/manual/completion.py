"""Completion of bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from affinityd.cli import COMMANDS
from docs.manual.commands import Command, Option

BASH = """\
# bash completion for affinityd
_affinityd() {
    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]-} words='' place
    COMPREPLY=()
    # bash makes three words of --mode=node
    if [[ $word == = ]]; then
        word=''
    elif [[ $before == = ]]; then
        before=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    if ((COMP_CWORD == 1)); then
        words=%(commands)s
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
        return
    fi
    if [[ $command == exec ]]; then
        for ((place = 2; place <= COMP_CWORD; place++)); do
            if [[ ${COMP_WORDS[place]} == -- ]] && ((place < COMP_CWORD)); then
                _affinityd_other "$((place + 1))"
                return
            elif [[ $place == 2 && ${COMP_WORDS[2]} == [!-]* ]]; then
                _affinityd_other 2
                return
            fi
        done
    elif ((COMP_CWORD > 2)) && [[ " %(parents)s " == *" $command "* ]]; then
        command+=" ${COMP_WORDS[2]}"
    fi
    case "$command $before" in
%(values)s
    *)
        case $command in
%(options)s
        esac
        ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}

# The command that exec runs, from this place on: by its own completion, where that is loaded.
_affinityd_other() {
    if declare -F _command_offset >/dev/null; then
        _command_offset "$1"
    elif ((COMP_CWORD == $1)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$word")
    else
        _affinityd_paths
    fi
}

_affinityd_paths() {
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
}

complete -F _affinityd affinityd
"""


def bash(commands: Sequence[Command]) -> str:
    """Return a file for bash-completion, which works without it."""
    places: dict[str, list[str]] = {}  # what completes a value → after which words
    for command in commands:
        for option in command.options:
            if option.value and not option.may_be_absent:
                after = [f'"{command.name} {name}"' for name in option.names]
                places.setdefault(_bash_value(option), []).extend(after)
    values = [
        f"    {' | '.join(after)})\n        {does}\n        ;;" for does, after in places.items()
    ]
    options = [
        f"        {shlex.quote(command.name)}) words={_bash_words(command)} ;;"
        for command in commands
    ]
    return BASH % {
        "commands": shlex.quote(" ".join(COMMANDS)),
        "parents": " ".join(it.name for it in commands if it.subcommands),
        "values": "\n".join(values),
        "options": "\n".join(options),
    }


def _bash_value(option: Option) -> str:
    if option.is_path:
        return "_affinityd_paths\n        return"
    return f"words={shlex.quote(' '.join(option.words))}"


def _bash_words(command: Command) -> str:
    pids = "$(cd /proc && echo [0-9]*)" if any(it.is_pid for it in command.arguments) else ""
    return f'"{" ".join([*command.words, *([pids] if pids else [])])}"'


def zsh(commands: Sequence[Command]) -> str:
    """Return a function of zsh's completion system."""
    top = [it for it in commands if " " not in it.name]
    lines = ["#compdef affinityd", "", "_affinityd() {", *_zsh_choice("", [*COMMANDS.items()])]
    for command in top:
        lines.append(f"        {command.name})")
        if not command.subcommands:
            lines += _zsh_arguments(command, "            ")
        else:
            below = [it for it in commands if it.name.startswith(f"{command.name} ")]
            named = [(it.name.partition(" ")[2], it.about) for it in below]
            lines += _zsh_choice("        ", named)
            for each in below:
                lines.append(f"                {each.name.partition(' ')[2]})")
                lines += _zsh_arguments(each, "                    ")
                lines.append("                    ;;")
            lines += ["                esac", "            fi"]
        lines.append("            ;;")
    lines += ["        esac", "    fi", "}", "", '_affinityd "$@"', ""]
    return "\n".join(lines)


def _zsh_choice(indent: str, names: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the beginning of a choice of commands; its cases follow."""
    described = " ".join(_quoted(f"{name}:{about}") for name, about in names)
    indent += "    "
    yield f"{indent}local -a choices=({described})"
    yield f"{indent}local context state state_descr line"
    yield f"{indent}_arguments -C '1:command:->command' '*::argument:->argument'"
    yield f"{indent}if [[ $state == command ]]; then"
    yield f"{indent}    _describe command choices"
    yield f"{indent}elif [[ $state == argument ]]; then"
    yield f"{indent}    case $words[1] in"


def _zsh_arguments(command: Command, indent: str) -> Iterator[str]:
    stop = " -S" if command.name == "exec" else ""
    specs = [spec for option in command.options for spec in _zsh_option(option)]
    specs += [_zsh_argument(option) for option in command.arguments]
    if command.name == "exec":
        specs += [_quoted("(-)1:command: _command_names -e"), _quoted("*::arguments: _normal")]
    yield f"{indent}_arguments{stop} \\"
    yield " \\\n".join(f"{indent}    {spec}" for spec in specs)


def _zsh_option(option: Option) -> Iterator[str]:
    others = f"({' '.join(option.names)})"
    for name in option.names:
        about = f"{others}{name}{'=' if option.value and name.startswith('--') else ''}"
        about += "-" if option.value and option.may_be_absent else ""
        colons = "::" if option.may_be_absent else ":"
        value = f"{colons}{_zsh_value(option)}" if option.value else ""
        yield _quoted(f"{about}[{_zsh_text(option.help)}]{value}")


def _zsh_argument(option: Option) -> str:
    number = "*" if option.words else ""  # the only ones of several are a doctor's checks
    return _quoted(
        f"{number}:{':' if option.may_be_absent and not number else ''}{_zsh_value(option)}"
    )


def _zsh_value(option: Option) -> str:
    action = f"({' '.join(option.words)})" if option.words else ""
    if option.is_path:
        action = "_files"
    elif option.is_pid:
        action = "_pids"
    return f"{_zsh_text(option.value)}:{action or ' '}"


def _zsh_text(words: str) -> str:
    for character in "[]:":
        words = words.replace(character, f"\\{character}")
    return words


def _quoted(words: str) -> str:
    return "'{}'".format(words.replace("'", "'\\''"))


FISH = """\
# fish completion for affinityd
complete -c affinityd -f

# Whether the words so far are those of this command, and complete its options.
function __affinityd_in
    set -l words (commandline -opc)
    contains -- -- $words; and return 1
    set -l last (math 1 + (count $argv))
    test "$words[2..$last]" = "$argv"
end

# The command that exec runs, by its own completion.
function __affinityd_other
    set -l words (commandline -opc)
    set -l place (contains -i -- -- $words); or return
    set -l first (math $place + 1)
    complete -C (string join -- ' ' (string escape -- $words[$first..]) (commandline -ct))
end

function __affinityd_runs
    set -l words (commandline -opc)
    test "$words[2]" = exec; and contains -- -- $words
end

complete -c affinityd -n __affinityd_runs -a '(__affinityd_other)'
"""


def fish(commands: Sequence[Command]) -> str:
    """Return a file of fish."""
    first = "'test (count (commandline -opc)) = 1'"
    lines = [
        f"complete -c affinityd -n {first} -a {name} -d {_fish(about)}"
        for name, about in COMMANDS.items()
    ]
    about_of = {command.name: command.about for command in commands}
    for command in commands:
        start = f"complete -c affinityd -n '__affinityd_in {command.name}'"
        for word in command.subcommands:
            second = f"'__affinityd_in {command.name}; and test (count (commandline -opc)) = 2'"
            about = _fish(about_of[f"{command.name} {word}"])
            lines.append(f"complete -c affinityd -n {second} -a {word} -d {about}")
        for option in command.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            lines.append(f"{start} {names}{_fish_value(option)} -d {_fish(option.help)}")
        for argument in command.arguments:
            words = "(__fish_complete_pids)" if argument.is_pid else " ".join(argument.words)
            lines.append(f"{start} -a {_fish(words)}")
    return "\n".join([FISH, *lines, ""])


def _fish_value(option: Option) -> str:
    if not option.value or option.may_be_absent:
        return ""
    if option.is_path:
        return " -r -F"
    return f" -x -a {_fish(' '.join(option.words))}" if option.words else " -x"


def _fish(words: str) -> str:
    return "'{}'".format(words.replace("\\", "\\\\").replace("'", "\\'"))
