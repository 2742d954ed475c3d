"""The command line of `affinityd exec`, read without argparse, which costs as much as a start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from affinityd.cli.console import flag
from affinityd.client.find_plan import TIMEOUT
from affinityd.config.file import PLAN_PARAMETERS, plan_parameters
from affinityd.errors import InvalidRequestError
from affinityd.text import quote

#: The parameters of a plan that it takes.
PARAMETERS = (
    *("gpus", "rank", "ranks", "job", "gpu_bind", "cpu_bind", "step_gpus", "job_cpus", "cpuset"),
    *("cpus", "task_cpus", "visible", "granted", "nvidia_visible", *PLAN_PARAMETERS),
)
CLIENT_OPTIONS = {
    "rank": ("RANK", "which rank this process is (default: as its launcher's variables say)"),
    "memory": (
        "local|preferred|bind|interleave",
        "also set a memory policy (default: none; the kernel takes near memory)",
    ),
    "nics": (
        "ucx,nvshmem,uccl,nccl",
        "set the variables of these libraries to the RDMA devices near the GPU",
    ),
    "timeout": ("SECONDS", "how long a plan may take (default: 1)"),
    "omp": (None, "export OMP_NUM_THREADS, unless it is set"),
    "fail_closed": (None, "fail if the command cannot be pinned"),
    "verbose": (None, "print the rank, GPU, node, CPUs and NICs on stderr"),
}
FLAGS = frozenset(name for name, (metavar, _) in CLIENT_OPTIONS.items() if metavar is None)
#: Options for people, the first in the help; launchers and schedulers set the rest.
COMMON = (
    *("gpus", "rank", "mode", "memory", "nics", "omp", "verbose", "strict", "fail_closed"),
    "timeout",
)
BOOLEANS = frozenset(("balanced", "strict"))  #: may take one
FAIL_CLOSED = "--fail-closed"
OPTIONS = {flag(name): name for name in (*PARAMETERS, *CLIENT_OPTIONS)}
SHORT = {"-v": "verbose"}
LEAST_TIMEOUT, MOST_TIMEOUT = 0.001, 3600.0  #: seconds

Options = dict[str, str]


def fails_closed(words: Sequence[str]) -> bool:
    """Return whether the command is not to run unpinned, however wrong the rest is."""
    return any(word.partition("=")[0] == FAIL_CLOSED for word in words)


def split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return affinityd's words and the command's. Raises InvalidRequestError without a command."""
    if argv and not argv[0].startswith("-"):
        ours, command = argv[:0], argv
    elif "--" in argv:
        place = argv.index("--")
        ours, command = argv[:place], argv[place + 1 :]
    else:
        raise InvalidRequestError("-- is missing before the command; write affinityd exec -- CMD …")
    if not command:
        raise InvalidRequestError("the command is missing; write affinityd exec -- CMD …")
    return ours, command


def parse(words: Sequence[str]) -> Options:
    """Read affinityd's words: `--name value`, `--name=value`, or a flag, which is true.

    Raises InvalidRequestError, which names the first that is wrong.
    """
    options: Options = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        said, has_value, value = word.partition("=")
        name = OPTIONS.get(said) or SHORT.get(said)
        if name is None:
            raise InvalidRequestError(_unknown(word))
        if name in options:
            raise InvalidRequestError(f"{said} is given twice; give it once")
        if has_value and name in FLAGS:
            raise InvalidRequestError(f"{quote(word)}: {said} takes no value")
        options[name] = value if has_value else _value(name, rest)
    return options


def _value(name: str, rest: list[str]) -> str:
    """Take an option's value from the next words; a flag is true."""
    if name in FLAGS or (name in BOOLEANS and (not rest or rest[0].startswith("-"))):
        return "true"
    if not rest:
        raise InvalidRequestError(f"{flag(name)} has no value; write it like {flag(name)}=VALUE")
    return rest.pop(0)


def parameters(options: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return the given parameters of a plan: options, else AFFINITYD_* variables."""
    chosen = {name: text for name, text in options.items() if name in PARAMETERS}
    given = plan_parameters(variables)
    if "cpus" in chosen:
        given.pop("task_cpus", None)
    return {**given, **chosen}


def seconds(text: str | None) -> float:
    """Read a timeout. Raises InvalidRequestError."""
    try:
        number = TIMEOUT if text is None else float(text)
    except ValueError:
        number = 0.0
    if not LEAST_TIMEOUT <= number <= MOST_TIMEOUT:
        raise InvalidRequestError(
            f"timeout: {quote(text or '')} is not a number of seconds from {LEAST_TIMEOUT:g} to "
            f"{MOST_TIMEOUT:g}"
        )
    return number


def print_help() -> None:
    """Print the command's options."""
    from affinityd.cli.parser import Parser  # noqa: PLC0415
    from affinityd.cli.plan_options import add_option  # noqa: PLC0415

    parser = Parser(
        prog="affinityd exec",
        usage="affinityd exec [OPTION …] -- CMD …",
        description=(
            "Run CMD on the CPUs near this process's GPU. A launcher starts one for each rank: "
            "torchrun --nproc_per_node 8 --no-python affinityd exec -- python train.py"
        ),
        epilog=(
            "AFFINITYD_MODE and so on do the same. AFFINITYD=off runs CMD as it is; so "
            "does AFFINITYD=observe, and says in AFFINITYD_UNPINNED where it would run."
        ),
        add_help=False,
    )
    others = parser.add_argument_group("options of the plan, most of which launchers set")
    for name in (*COMMON, *(name for name in OPTIONS.values() if name not in COMMON)):
        group = parser if name in COMMON else others
        metavar, text = CLIENT_OPTIONS.get(name, (None, ""))
        flags = [*(short for short in SHORT if SHORT[short] == name), flag(name)]
        if name in FLAGS:
            group.add_argument(*flags, action="store_true", help=text)
        elif metavar:
            group.add_argument(*flags, metavar=metavar, help=text)
        else:
            add_option(group, name)
    parser.print_help()


def _unknown(word: str) -> str:
    import difflib  # noqa: PLC0415 - only where something is wrong

    near = difflib.get_close_matches(word[:64].partition("=")[0], OPTIONS, n=1)
    known = f"did you mean {near[0]}?" if near else f"known are {', '.join(OPTIONS)}"
    return f"{quote(word)} is not an option; {known}"
