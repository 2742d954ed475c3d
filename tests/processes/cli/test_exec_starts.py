"""`affinityd exec` starts its command even if its own files are damaged."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.tiny import BOTH, FAR, LOOK, PROGRAM, Ended, ran, tiny_tree

#: Prints affinityd's modules that a process imports to plan by itself.
IMPORTED = """
import sys, time
from affinityd.cli import entry
from affinityd.cli.commands import exec
from affinityd.client import ask_daemon
from affinityd.client.process import ProcessContext
query = ProcessContext.of_self().query({'gpus': '1'}, frozenset({0}))
ask_daemon.find_plan(query, ['/none/s'], time.monotonic(), 60, forks=True)
ask_daemon.find_plan(query, ['/none/s'], 0, 60, forks=False)
for name, module in sys.modules.items():
    if name.partition('.')[0] == 'affinityd':
        print(module.__file__)
"""
SEVEN = ("--", "sh", "-c", "exit 7")
NOT_RUN = "affinityd exec:"


class Installed:
    """A copy of the package, beside its start script."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(REPOSITORY / "affinityd", folder / "affinityd")
        shutil.copy(PROGRAM, folder / "start")
        self.folder = folder
        self.env = {
            "PATH": f"{os.environ['PATH']}:{folder}",
            "AFFINITYD_CONFIG": "/nonexistent",
            "AFFINITYD_ROOT": str(tiny_tree(folder / "machine")),
        }

    def exec_(self, *words: str) -> Ended:
        start = (sys.executable, "-S", self.folder / "start", "exec")
        return ran(*start, *words, env=self.env)

    def modules(self) -> list[Path]:
        command = [sys.executable, "-c", IMPORTED]
        listed = ran(*command, env=self.env, cwd=self.folder)
        assert listed.status == 0, listed.stderr
        return [Path(line) for line in listed.stdout.splitlines()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("installed"))


def damages(module: Path) -> Iterator[str]:
    """Remove a module, then truncate it, then restore it."""
    source = module.read_bytes()
    try:
        module.unlink()
        yield "removed"
        module.write_bytes(source[: len(source) // 2])
        yield "cut off"
    finally:
        module.write_bytes(source)


def test_exec_starts_the_command_if_any_module_is_missing(installed: Installed) -> None:
    modules = installed.modules()
    assert installed.folder / "affinityd/client/local_plan.py" in modules
    for module in modules:
        for damage in damages(module):
            done = installed.exec_("--gpus", "1", *SEVEN)
            name = module.relative_to(installed.folder)
            assert done.status == 7, f"{name}, {damage}: {done.stderr}"


@pytest.mark.parametrize(
    ("words", "status", "end"),
    [
        (("sh", "-c", "exit 7"), 7, "runs unpinned"),
        (("--gpus=1", *SEVEN), 7, "runs unpinned"),
        (("--fail-closed", *SEVEN), 125, "was not started"),
        (("--fail-closed=true", *SEVEN), 125, "was not started"),
        (("--", "seven", "4", "3"), 7, "runs unpinned"),
        (("--", "sh", "-c", "kill -PIPE $$"), -13, "runs unpinned"),
        (
            ("--", "/none"),
            127,
            f"runs unpinned\n{NOT_RUN} '/none' cannot be run: No such file or directory",
        ),
        (("--", "/dev"), 126, f"runs unpinned\n{NOT_RUN} '/dev' cannot be run: Permission denied"),
        (("--gpus=1",), 1, None),
    ],
)
def test_the_start_script_itself_runs_the_command(
    installed: Installed, words: tuple[str, ...], status: int, end: str | None
) -> None:
    script = installed.folder / "seven"  # found by PATH, and without #!
    script.write_text("exit $(($1 + $2))\n")
    script.chmod(0o755)
    for _ in damages(installed.folder / "affinityd/text.py"):
        done = installed.exec_(*words)
        assert done.status == status, done.stderr
        assert end is None or done.stderr.endswith(f"; the command {end}\n")


@pytest.mark.parametrize("path", [None, ""])
def test_exec_pins_in_a_deleted_working_folder(
    installed: Installed, tmp_path: Path, path: str | None
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    env = {**installed.env, **({} if path is None else {"PYTHONPATH": path})}
    script = f'rmdir "{gone}"; exec "$@"'
    start = (sys.executable, installed.folder / "start", "exec", "--gpus", "1", "--")
    assert ran("sh", "-c", script, "sh", *start, *LOOK, cwd=gone, env=env).cpus == FAR


# Reads of files that fail.

#: System calls that name a path; a processor may lack those with `?`.
CALLS = "?open,openat,?readlink,readlinkat,?newfstatat,?fstatat64"
KERNELS = ("/dev", "/proc", "/run", "/sys")
ERRORS = ("EIO", "ENOMEM", "EPERM", "EAGAIN")
#: Prints its CPUs, and ends with a status of its own.
MASK_AND_SEVEN = ("--", "sh", "-c", "grep Cpus_allowed_list /proc/$$/status; exit 7")


def test_with_unreadable_files_the_mask_stays_or_becomes_near(
    installed: Installed, tmp_path: Path
) -> None:
    settings, trace = tmp_path / "settings", tmp_path / "trace"
    settings.touch()
    machine = installed.env["AFFINITYD_ROOT"]
    env = {**installed.env, "AFFINITYD_CONFIG": str(settings), "LOCAL_RANK": "1"}
    start = (sys.executable, "-S", installed.folder / "start", "exec", *MASK_AND_SEVEN)
    ran("strace", "-fqq", "-o", trace, "-e", f"trace={CALLS}", *start, env=env)
    asked = dict.fromkeys(re.findall(r'"(/[^"]+)"', trace.read_text()))
    paths = [path for path in asked if path.startswith((machine, str(settings)))]
    paths += [path for path in asked if path.startswith(KERNELS) and "pytest" not in path]
    assert {f"{machine}/sys/devices/system/node/node1/cpulist", str(settings), "/dev"} <= {*paths}
    for number, path in enumerate(paths):
        error = ERRORS[number % len(ERRORS)]
        twin = path.replace("cpulist", "cpumap")  # the kernel has the same set in both
        fault = ("-P", path, "-P", twin, "-e", f"inject={CALLS}:error={error}")
        done = ran("strace", "-fqq", "-o", trace, *fault, *start, env=env)
        cpus = done.stdout.partition(":")[2].strip()
        assert (done.status, cpus in {FAR, BOTH}) == (7, True), f"{path}, {error}: {done}"


HANGS, SOON = "delay_enter=3s", "timeout=0.05"
LATE = "no plan within 0.3 s of the start"
OBSERVED = "affinityd.bind(); import os; print(os.environ['AFFINITYD_UNPINNED'])"


@pytest.mark.parametrize(
    ("fault", "status", "words", "told"),
    [
        ("error=EIO", 0, ("-c", "import affinityd; print(*affinityd.bind().warnings)"), "\n/dev: "),
        ("error=EMFILE", 0, ("-c", "import affinityd; affinityd.set_affinity(0, 1)"), " /dev: "),
        ("error=EIO", 0, ("-c", f"import affinityd; {OBSERVED}"), "\n/dev: "),
        ("error=EIO", 1, ("-c", "import affinityd; affinityd.plan()"), "ApplyError: /dev: "),
        ("error=EIO", 1, ("-m", "affinityd", "plan"), "affinityd plan: /dev: "),
        (HANGS, 0, ("-c", f"import affinityd; print(*affinityd.bind({SOON}).warnings)"), LATE),
        (HANGS, 1, ("-c", f"import affinityd; affinityd.plan({SOON})"), f"ApplyError: {LATE}"),
        (HANGS, 7, ("-m", "affinityd", "exec", f"--{SOON}", *SEVEN), f"affinityd exec: {LATE}"),
    ],
)
def test_a_dev_folder_that_fails_or_hangs_is_named(
    tmp_path: Path, fault: str, status: int, words: Sequence[str], told: str
) -> None:
    fails = ("-P", "/dev", "-e", f"inject={CALLS}:{fault}")
    env = {**os.environ, "AFFINITYD_CONFIG": "/nonexistent"}
    if OBSERVED in words[-1]:
        env["AFFINITYD"] = "observe"
    done = ran("strace", "-fqq", "-o", tmp_path / "trace", *fails, sys.executable, *words, env=env)
    assert done.status == status
    assert told in f"\n{done.stdout}{done.stderr}"
