"""`affinityd exec`: pins itself to the CPUs near its GPU, then becomes the command.

Each rank waits for its imports: no argparse, json or socket on the way to execve(2).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes half as long as Python's start
import errno
import os
import time

from affinityd import config
from affinityd.cli.console import flag, say
from affinityd.client import apply, ask_daemon
from affinityd.client.process import ProcessContext
from affinityd.client.remarks import summary
from affinityd.cpuset import several
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.linux.cgroup import own_cpu_limit
from affinityd.linux.files import environment_of
from affinityd.text import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from affinityd.cli.parser import Parser
    from affinityd.cpuset import CpuSet
    from affinityd.request.environment import Pairs
    from affinityd.request.process_plan import ProcessPlan

NAME = "affinityd exec"
#: As env(1) and timeout(1) have it; the first: the command was not tried.
FAILED, CANNOT_RUN, NOT_FOUND = 125, 126, 127

OWN = f"{config.PREFIX}OWN"  #: of 0.2

#: The parameters of a plan that it takes.
PARAMETERS = (
    *("gpus", "rank", "ranks", "job", "cpuset"),
    *("cpus", "visible", "granted", "gpus_per_rank", *config.PLAN_PARAMETERS),
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
    "timeout": ("SECONDS", "to ask a daemon (default: 1); to read the machine, 5 times as long"),
    "choose_gpu": (None, "leave the CPUs, and set the vendor's variable to the GPUs near them"),
    "threads": (None, "export OMP_NUM_THREADS, unless it is set, and PYTHON_CPU_COUNT"),
    "fail_closed": (None, "fail if the command cannot be pinned"),
    "verbose": (None, "print the rank, GPU, node, CPUs and NICs on stderr"),
}
#: How exec goes with launchers: behind them, since it pins the ranks.
_INSIDE_TORCHRUN = "torchrun … --no-python affinityd exec -- python -u train.py"
ORDERS = {
    "torchrun": _INSIDE_TORCHRUN,
    "torch.distributed.run": _INSIDE_TORCHRUN,
    "torch.distributed.launch": _INSIDE_TORCHRUN,
    "accelerate": "accelerate launch … --no_python affinityd exec -- python -u train.py",
    "deepspeed": "deepspeed … --no_python --no_local_rank affinityd exec -- python -u train.py",
    "mpirun": "mpirun … affinityd exec -- COMMAND",
    "mpiexec": "mpiexec … affinityd exec -- COMMAND",
    "srun": "srun … affinityd exec -- COMMAND",
}
FLAGS = [name for name, (metavar, _) in CLIENT_OPTIONS.items() if metavar is None]
#: Options for people, which the help has; launchers and schedulers set the rest.
COMMON = (
    *("gpus", "choose_gpu", "rank", "mode", "memory", "nics", "threads", "verbose", "strict"),
    *("fail_closed", "timeout"),
)
BOOLEANS = ("balanced", "strict")  #: may take one
OPTIONS = {flag(name): name for name in (*PARAMETERS, *CLIENT_OPTIONS)}
SHORT = {"-v": "verbose"}
LEAST_TIMEOUT, MOST_TIMEOUT = 0.001, 3600.0  #: seconds


def main(argv: Sequence[str]) -> int:
    """Execute the command. Return 125, 126 or 127 if that fails; otherwise it does not return."""
    start = time.monotonic()
    if argv and argv[0] in {"-h", "--help"}:
        help_parser().print_help()
        return 0
    try:
        words, command = split(argv)
    except InvalidRequestError as error:
        say(f"{NAME}: {error}")
        return FAILED
    if "--check" in words:  # in 0.2 it started nothing
        from affinityd.config.removed import refusal  # noqa: PLC0415 - few ask for it

        say(refusal("exec --check") or "")
        return FAILED
    trouble = _trouble(words, command, start)
    if trouble is None:
        return become(command)
    # However wrong the other options are.
    is_closed = any(word.partition("=")[0] == "--fail-closed" for word in words)
    say(f"{NAME}: {trouble}; the command {'was not started' if is_closed else 'runs unpinned'}")
    return FAILED if is_closed else become(command)


def _trouble(words: Sequence[str], command: Sequence[str], start: float) -> str | None:
    """Pin this process unless the switch is off. Return the reason if it was not pinned."""
    switch = config.ON
    try:
        switch = config.chosen_switch()
        if switch != config.OFF:
            _pin(parse(words), command, start, switch)
    except AffinityError as error:
        trouble = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a bug here must not end a job
        trouble = f"{type(error).__name__}: {error}"
    else:
        return None
    if switch == config.OBSERVE:
        apply.export_unpinned(trouble)
        return None
    apply.forget_other_pin()
    return trouble


def _plan(
    options: Mapping[str, str], variables: Mapping[str, str], start: float, switch: str
) -> tuple[ProcessContext, dict[str, str], ProcessPlan]:
    """Return this process, the parameters of its plan, and the plan. Raises AffinityError."""
    timeout = seconds(options.get("timeout") or variables.get("AFFINITYD_TIMEOUT"))
    parameters = config.plan_parameters(variables, _named(options))

    def find_facts() -> tuple[ProcessContext, Pairs]:
        process = ProcessContext.of_self()
        return process, process.query(parameters, process.mask, switch)

    process, query = ask_daemon.within(start, timeout, find_facts)
    plan = ask_daemon.find_plan(query, config.sockets(variables), start, timeout, forks=True)
    return process, parameters, plan


def _named(options: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters of a plan among the options."""
    named = {name: text for name, text in options.items() if name in PARAMETERS}
    if "choose_gpu" in options:
        named["choose"] = "gpu"
    return named


def _launcher_of(command: Sequence[str]) -> str | None:
    """Return the launcher of ranks that a command is, as a program or as a module of Python."""
    name = command[0].rpartition("/")[2]
    if name.startswith("python"):
        for place, word in enumerate(command[1:-1], start=2):
            if word == "-m":
                name = command[place]
            if word == "-m" or not word.startswith("-"):
                break
    return name if name in ORDERS else None


def _pin(options: Mapping[str, str], command: Sequence[str], start: float, switch: str) -> None:
    """Plan, pin this process and set the command's variables. Raises AffinityError.

    With the switch at observe, here or in the daemon, the mask stays as it is.
    """
    variables = config.variables()
    policy = options.get("memory") or variables.get("AFFINITYD_MEMORY")
    libraries = options.get("nics") or variables.get("AFFINITYD_NICS")
    if policy is not None:
        from affinityd.linux.memory_policy import checked_policy  # noqa: PLC0415 - few ask for one

        checked_policy(policy)
    kept = apply.kept_pin(_named(options)) if switch == config.ON else None
    if kept is not None:
        _keep(kept, options, variables, start)
        return
    process, parameters, plan = _plan(options, variables, start, switch)
    if plan.switch != config.ON:
        apply.export_observed(plan)
        return
    launcher = _launcher_of(command) if len(plan.nodes) > 1 else None
    cpus, _, lines = apply.apply_plan(
        plan,
        process,
        parameters,
        variables,
        policy=policy,
        libraries=libraries,
        starts_ranks=launcher is not None,
    )
    if launcher is not None:
        lines.append(
            f"{launcher} starts the ranks, and each may run near any of these GPUs; to run each "
            f"near its own: {ORDERS[launcher]}"
        )
    if "verbose" in options:
        ports = os.environ.get(apply.EXPORTED_NICS) or "none"
        nics = [f"NICs for {libraries}: {ports}"] if libraries else []
        lines = [summary(plan, cpus, process, parameters), *nics, *lines]
    if os.environ.get(OWN):
        lines.append(f"{OWN} is removed, and ignored: docs/exec.md has each binder's switch")
    sets_threads = "threads" in options or variables.get(apply.THREADS) == apply.AUTO
    threads = plan.threads if sets_threads else None
    for line in (*lines, *apply.threads_to_start(cpus, process.cpu_limit, threads)):
        say(f"{NAME}: {line}")


def _keep(
    cpus: CpuSet, options: Mapping[str, str], variables: Mapping[str, str], start: float
) -> None:
    """Leave the mask that affinityd has given this process; do what else the options name.

    What variables name, the command that pinned it has done.
    """
    lines = []
    if "verbose" in options:
        lines.append(f"affinityd pinned this process before, to {several('CPU', cpus)}: they stay")
    threads = None
    if {"memory", "nics", "threads"} & options.keys():
        _, _, plan = _plan(options, variables, start, config.ON)
        policy, libraries = options.get("memory"), options.get("nics")
        _, remarks = apply.add_to_pin(plan, variables, policy=policy, libraries=libraries)
        lines += remarks
        threads = plan.threads if "threads" in options else None
    for line in (*lines, *apply.threads_to_start(cpus, own_cpu_limit(), threads)):
        say(f"{NAME}: {line}")


def split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split affinityd's options from the command. Raises InvalidRequestError without a command."""
    if argv and not argv[0].startswith("-"):
        words, command = argv[:0], argv
    elif "--" in argv:
        place = argv.index("--")
        words, command = argv[:place], argv[place + 1 :]
    else:
        raise InvalidRequestError("-- is missing before the command; write affinityd exec -- CMD …")
    if not command:
        raise InvalidRequestError("the command is missing; write affinityd exec -- CMD …")
    return words, command


def parse(words: Sequence[str]) -> dict[str, str]:
    """Parse affinityd's options: `--name value`, `--name=value`, or a flag, which is true.

    Raises InvalidRequestError, which quotes the first wrong one.
    """
    options: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        option, has_value, value = word.partition("=")
        name = OPTIONS.get(option) or SHORT.get(option)
        if name is None:
            from affinityd.config.removed import REMOVED_COMMANDS  # noqa: PLC0415 - as seldom

            if (instead := REMOVED_COMMANDS.get(f"exec {option}")) is not None:
                raise InvalidRequestError(f"{option} is removed: {instead}")
            from affinityd.request.parameters import suggestion  # noqa: PLC0415 - as seldom

            hint = suggestion(option, OPTIONS)
            raise InvalidRequestError(f"{quote(word)} is not an option; {hint}")
        if name in options:
            raise InvalidRequestError(f"{option} is given twice; give it once")
        if has_value and name in FLAGS:
            raise InvalidRequestError(f"{quote(word)}: {option} takes no value")
        if not has_value:
            value = _value(name, rest)
        options[name] = value
    return options


def _value(name: str, rest: list[str]) -> str:
    """Remove an option's value from the remaining words; a flag is true."""
    if name in FLAGS or (name in BOOLEANS and (not rest or rest[0].startswith("-"))):
        return "true"
    if not rest:
        raise InvalidRequestError(f"{flag(name)} has no value; write it like {flag(name)}=VALUE")
    return rest.pop(0)


def seconds(text: str | None) -> float:
    """Read a timeout. Raises InvalidRequestError."""
    try:
        number = ask_daemon.TIMEOUT if text is None else float(text)
    except ValueError:
        number = 0.0
    if not LEAST_TIMEOUT <= number <= MOST_TIMEOUT:
        raise InvalidRequestError(
            f"timeout: {quote(text or '')} is not a number of seconds from {LEAST_TIMEOUT:g} to "
            f"{MOST_TIMEOUT:g}"
        )
    return number


def help_parser() -> Parser:
    """Return a parser that has the options and their help; `parse` reads the command line."""
    from affinityd.cli.parser import Parser, add_plan_option  # noqa: PLC0415

    parser = Parser(
        prog=NAME,
        usage="affinityd exec [OPTION …] -- CMD …",
        description=(
            "Run CMD on the CPUs near this process's GPU. A launcher starts one for each rank: "
            "torchrun --nproc_per_node 8 --no-python affinityd exec -- python -u train.py"
        ),
        epilog=(
            "AFFINITYD_MODE and so on do the same. AFFINITYD=off runs CMD as it is; so "
            "does AFFINITYD=observe, and says in AFFINITYD_UNPINNED where it would run. exit "
            "status: that of CMD; 125: it was not started; 126: it cannot be run; 127: it was not "
            "found"
        ),
        add_help=False,
    )
    for name in COMMON:
        metavar, text = CLIENT_OPTIONS.get(name, (None, ""))
        flags = [*(short for short in SHORT if SHORT[short] == name), flag(name)]
        if name in FLAGS:
            parser.add_argument(*flags, action="store_true", help=text)
        elif metavar:
            parser.add_argument(*flags, metavar=metavar, help=text)
        else:
            add_plan_option(parser, name)
    return parser


def become(command: Sequence[str]) -> int:
    """Execute a command, found along PATH. If that fails, print why, and return 126 or 127."""
    _undo_python()
    program, *arguments = command
    path = program
    if "/" not in program:
        folders = os.environ.get("PATH", os.defpath).split(":")
        paths = (f"{folder or '.'}/{program}" for folder in folders)
        path = next(filter(_is_program, paths), "")
    error = _execute(path, [program, *arguments])
    if error == errno.ENOEXEC:  # a script without #!, which is the shell's
        error = _execute("/bin/sh", ["sh", path, *arguments])
    say(f"{NAME}: {quote(program)} cannot be run: {os.strerror(error)}")
    return NOT_FOUND if error == errno.ENOENT else CANNOT_RUN


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)  # noqa: PTH113 - starts sooner


def _execute(path: str, words: list[str]) -> int:
    try:
        os.execv(path, words)  # noqa: S606 - the purpose of this command
    except OSError as error:
        return error.errno or errno.EIO
    except ValueError:  # Python's own, for an empty word
        return errno.ENOENT


def _undo_python() -> None:
    """Undo the changes of Python's start to the state that a program inherits.

    It ignores two signals; like `subprocess`, it cannot know whether they were ignored before. In
    the C locale it sets LC_CTYPE.
    """
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_DFL)
    if os.environ.get("LC_CTYPE") in {"C.UTF-8", "C.utf8", "UTF-8"}:  # PEP 538
        started_with = environment_of(os.getpid())
        if started_with is not None and "LC_CTYPE" not in started_with:
            del os.environ["LC_CTYPE"]
        elif started_with is not None:
            os.environ["LC_CTYPE"] = started_with["LC_CTYPE"]
