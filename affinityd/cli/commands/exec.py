"""`affinityd exec`: pins itself to the CPUs near its GPU, then executes the command.

Each rank waits for the imports: dataclasses and json take longer to import than Python to start.
"""

from __future__ import annotations

import argparse
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import NoReturn

from affinityd import config
from affinityd.cli.console import flag, say
from affinityd.client import apply, ask_daemon
from affinityd.client.process import ProcessContext
from affinityd.client.remarks import summary
from affinityd.config.removed import REMOVED_COMMANDS, VARIABLES, refusal
from affinityd.cpuset import CpuSet, several
from affinityd.errors import AffinityError, InvalidRequestError
from affinityd.linux.cgroup import Cgroups
from affinityd.linux.files import environment_of
from affinityd.request.environment import Pairs
from affinityd.request.process_plan import ProcessPlan
from affinityd.text import one_line, quote

NAME = "affinityd exec"
FAILED = 125  #: exit status, as of env(1) and timeout(1): the command was not tried

#: Parameters that launchers and schedulers set, so the help leaves them out.
HIDDEN = (
    "ranks",
    "job",
    "cpuset",
    "cpus",
    "visible",
    "granted",
    "gpus_per_rank",
    "share",
    "scope",
    "multithreading",
    "min_physical_cores",
    "max_physical_cores",
)
EXEC_PARAMETERS = ("gpus", "choose", "rank", "mode", "strict", "balanced", *HIDDEN)
#: Launcher → a command line in which it starts each rank through `affinityd exec`.
ORDERS = {
    "torchrun": "torchrun … --no-python affinityd exec -- python -u train.py",
    "torch.distributed.run": "torchrun … --no-python affinityd exec -- python -u train.py",
    "torch.distributed.launch": "torchrun … --no-python affinityd exec -- python -u train.py",
    "accelerate": "accelerate launch … --no_python affinityd exec -- python -u train.py",
    "deepspeed": "deepspeed … --no_python --no_local_rank affinityd exec -- python -u train.py",
    "mpirun": "mpirun … affinityd exec -- COMMAND",
    "mpiexec": "mpiexec … affinityd exec -- COMMAND",
    "srun": "srun … affinityd exec -- COMMAND",
}


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors: argparse's own would end the job."""

    def error(self, message: str) -> NoReturn:
        """Raise InvalidRequestError."""
        word = message.partition("unrecognized arguments: ")[2].split(" ")[0].partition("=")[0]
        instead = REMOVED_COMMANDS.get(f"exec {word}")
        line = one_line(message) if instead is None else f"{word} is removed: {instead}"
        raise InvalidRequestError(f"{line}; see {NAME} --help")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add affinityd's own options; the help shows those that people type."""
    parser.usage = "affinityd exec [OPTION …] -- CMD …"
    parser.description = (
        "Run CMD on the CPUs near this process's GPU. A launcher starts it for each rank: "
        "torchrun --nproc_per_node 8 --no-python affinityd exec -- python -u train.py"
    )
    parser.epilog = (
        "Variables like AFFINITYD_MODE set the same options. AFFINITYD=off runs CMD unpinned; "
        "AFFINITYD=observe too, and says in AFFINITYD_UNPINNED where CMD would run. exit status: "
        "that of CMD; 125: CMD was not started; 126: it cannot be run; 127: it was not found"
    )
    add = parser.add_argument
    add("--gpus", help="the ranks' GPUs, an entry each: index, UUID, PCI bus id, or all")
    choose = "keep the CPUs, and set the vendor's variable to the GPUs near them"
    add("--choose-gpu", dest="choose", action="store_const", const="gpu", help=choose)
    add("--rank", help="which rank this process is (default: as its launcher's variables say)")
    add("--mode", help="how ranks divide the cores (default: node); docs/planning.md has all")
    memory = "also set a memory policy (default: none; the kernel takes near memory)"
    add("--memory", metavar="local|preferred|bind|interleave", help=memory)
    nics = "set the variables of these libraries to the RDMA devices near the GPU"
    add("--nics", metavar="ucx,nvshmem,uccl,nccl", help=nics)
    threads = "export OMP_NUM_THREADS, unless it is set, and PYTHON_CPU_COUNT"
    add("--threads", action="store_true", help=threads)
    verbose = "print the rank, GPU, node, CPUs and NICs on stderr"
    add("-v", "--verbose", action="store_true", help=verbose)
    add("--strict", nargs="?", const="true", help="a rank far from its GPU is an error")
    add("--fail-closed", action="store_true", help="fail if the command cannot be pinned")
    timeout = "to wait for a daemon (default: 1); reading the machine may take 5 times as long"
    add("--timeout", metavar="SECONDS", help=timeout)
    add("--balanced", nargs="?", const="true", help=argparse.SUPPRESS)
    for name in HIDDEN:
        add(flag(name), help=argparse.SUPPRESS)


def option_parser() -> argparse.ArgumentParser:
    """Return the parser of affinityd's options. It raises InvalidRequestError."""
    parser = _Parser(prog=NAME, allow_abbrev=False, add_help=False)
    add_arguments(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Execute the command. If that fails, return 125, 126 or 127; otherwise do not return."""
    start = time.monotonic()
    if argv and argv[0] in {"-h", "--help"}:
        option_parser().print_help()
        return 0
    try:
        words, command = split(argv)
    except InvalidRequestError as error:
        say(f"{NAME}: {error}")
        return FAILED
    if "--check" in words:  # an option of 0.2; it started no command
        say(refusal("exec --check") or "")
        return FAILED
    trouble = _trouble(words, command, start)
    if trouble is None:
        return become(command)
    # --fail-closed applies, however wrong the other options are.
    is_closed = any(word.partition("=")[0] == "--fail-closed" for word in words)
    if is_closed:
        say(f"{NAME}: {trouble}; the command was not started")
        return FAILED
    say(f"{NAME}: {trouble}; the command runs unpinned")
    return become(command)


def _trouble(words: Sequence[str], command: Sequence[str], start: float) -> str | None:
    """Pin this process unless the switch is off. If that failed, return why."""
    switch = config.ON
    try:
        switch = config.chosen_switch()
        if switch != config.OFF:
            _pin(option_parser().parse_args(words), command, start, switch)
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
    options: argparse.Namespace, variables: Mapping[str, str], start: float, switch: str
) -> tuple[ProcessContext, dict[str, str], ProcessPlan]:
    """Return this process, the parameters of its plan, and the plan. Raises AffinityError."""
    timeout = ask_daemon.seconds(options.timeout or variables.get("AFFINITYD_TIMEOUT"))
    parameters = config.plan_parameters(variables, _named(options))

    def find_facts() -> tuple[ProcessContext, Pairs]:
        process = ProcessContext.of_self()
        return process, process.query(parameters, process.mask, switch)

    process, query = ask_daemon.within(start, timeout, find_facts)
    plan = ask_daemon.find_plan(query, config.sockets(variables), start, timeout, forks=True)
    return process, parameters, plan


def _named(options: argparse.Namespace) -> dict[str, str]:
    texts: dict[str, str] = {}
    for name in EXEC_PARAMETERS:
        text = getattr(options, name)
        if text is not None:
            texts[name] = text
    return texts


def _launcher_of(command: Sequence[str]) -> str | None:
    """Return the launcher of ranks in a command: `torchrun`, also behind env(1) or `python -m`."""
    for word in command:
        name = os.path.basename(word)  # noqa: PTH119 - starts sooner
        if name in ORDERS:
            return name
        if name.endswith(".py"):  # the words after a script are the script's
            return None
    return None


def _pin(options: argparse.Namespace, command: Sequence[str], start: float, switch: str) -> None:
    """Plan, pin this process and set the command's variables. Raises AffinityError."""
    variables = config.variables()
    policy = options.memory or variables.get("AFFINITYD_MEMORY")
    libraries = options.nics or variables.get("AFFINITYD_NICS")
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
            f"rank near its own GPU: {ORDERS[launcher]}"
        )
    removed = f"{config.PREFIX}OWN"  # a variable of release 0.2
    if os.environ.get(removed):
        lines.append(f"{removed} is removed, and ignored: {VARIABLES[removed]}")
    if options.verbose:
        ports = os.environ.get(apply.EXPORTED_NICS) or "none"
        if libraries:
            lines.insert(0, f"NICs for {libraries}: {ports}")
        lines.insert(0, summary(plan, cpus, process, parameters))
    sets_threads = options.threads or variables.get("AFFINITYD_THREADS") == "auto"
    threads = plan.threads if sets_threads else None
    for line in (*lines, *apply.threads_to_start(cpus, process.cpu_limit, threads)):
        say(f"{NAME}: {line}")


def _keep(
    cpus: CpuSet, options: argparse.Namespace, variables: Mapping[str, str], start: float
) -> None:
    """Keep the mask that affinityd has given this process, and apply the other options."""
    lines = []
    if options.verbose:
        lines.append(f"this process keeps the {several('CPU', cpus)} of an earlier pin")
    threads = None
    if options.memory or options.nics or options.threads:
        _, _, plan = _plan(options, variables, start, config.ON)
        _, remarks = apply.add_to_pin(
            plan, variables, policy=options.memory, libraries=options.nics
        )
        lines += remarks
        threads = plan.threads if options.threads else None
    for line in (
        *lines,
        *apply.threads_to_start(cpus, Cgroups.of(os.getpid()).cpu_limit(), threads),
    ):
        say(f"{NAME}: {line}")


def split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Split affinityd's options from the command. Raises InvalidRequestError without a command."""
    if argv and not argv[0].startswith("-"):
        words = argv[:0]
        command = argv
    elif "--" in argv:
        place = argv.index("--")
        words = argv[:place]
        command = argv[place + 1 :]
    else:
        raise InvalidRequestError("-- is missing before the command; write affinityd exec -- CMD …")
    if not command:
        raise InvalidRequestError("the command is missing; write affinityd exec -- CMD …")
    return words, command


def become(command: Sequence[str]) -> int:
    """Execute a command, found along PATH. If that fails, print why, and return 126 or 127."""
    _undo_python()
    program, *arguments = command
    path = program
    if "/" not in program:
        path = ""
        for folder in os.environ.get("PATH", os.defpath).split(":"):
            file = f"{folder or '.'}/{program}"
            if os.path.isfile(file) and os.access(file, os.X_OK):  # noqa: PTH113 - starts sooner
                path = file
                break
    error = _execute(path, [program, *arguments])
    if error == errno.ENOEXEC:  # a script without #! is run by the shell
        error = _execute("/bin/sh", ["sh", path, *arguments])
    say(f"{NAME}: {quote(program)} cannot be run: {os.strerror(error)}")
    return 127 if error == errno.ENOENT else 126


def _execute(path: str, words: list[str]) -> int:
    try:
        os.execv(path, words)  # noqa: S606 - the purpose of this command
    except OSError as error:
        return error.errno or errno.EIO
    except ValueError:  # Python raises it for an empty word
        return errno.ENOENT


def _undo_python() -> None:
    """Undo what Python did at its start: it ignores two signals, and may set LC_CTYPE (PEP 538)."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if os.environ.get("LC_CTYPE") in {"C.UTF-8", "C.utf8", "UTF-8"}:
        before = (environment_of(os.getpid()) or os.environ).get("LC_CTYPE")
        del os.environ["LC_CTYPE"]
        if before is not None:
            os.environ["LC_CTYPE"] = before
