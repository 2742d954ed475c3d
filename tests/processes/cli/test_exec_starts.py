"""`affinityd exec` starts its command, whatever has become of its own files."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.tiny import FAR, LOOK, PROGRAM, Ended, ran, tiny_tree

#: Prints the modules of ours that a process has imported which planned by itself.
IMPORTED = """
import sys
from affinityd.cli import entry
from affinityd.cli.commands import exec
from affinityd.client import apply, ask_daemon
ask_daemon.find_plan(apply.own_query({'gpus': '1'}), ['/none/s'], 0, 60, bounded=True)
ask_daemon.find_plan(apply.own_query({'gpus': '1'}), ['/none/s'], 0, 60, bounded=False)
for name, module in sys.modules.items():
    if name.partition('.')[0] == 'affinityd':
        print(module.__file__)
"""
SEVEN = ("--", "sh", "-c", "exit 7")


class Installed:
    """A copy of the package, beside its start script."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(REPOSITORY / "affinityd", folder / "affinityd")
        shutil.copy(PROGRAM, folder / "start")
        self.folder = folder
        self.env = {
            "PATH": os.environ["PATH"],
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
    """Leave a module away, then cut it off; put it right again."""
    source = module.read_bytes()
    try:
        module.unlink()
        yield "removed"
        module.write_bytes(source[: len(source) // 2])
        yield "cut off"
    finally:
        module.write_bytes(source)


def test_without_any_one_of_its_modules_it_starts_the_command(installed: Installed) -> None:
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
        (("--", "sh", "-c", "kill -PIPE $$"), -13, "runs unpinned"),
        (("--", "/none"), 127, "runs unpinned"),
        (("--gpus=1",), 1, None),
    ],
)
def test_the_start_script_itself_runs_the_command(
    installed: Installed, words: tuple[str, ...], status: int, end: str | None
) -> None:
    for _ in damages(installed.folder / "affinityd/text.py"):
        done = installed.exec_(*words)
        assert done.status == status, done.stderr
        assert end is None or done.stderr.endswith(f"; the command {end}\n")


@pytest.mark.parametrize("path", [None, ""])
def test_it_pins_in_a_folder_that_was_deleted(
    installed: Installed, tmp_path: Path, path: str | None
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    env = {**installed.env, **({} if path is None else {"PYTHONPATH": path})}
    script = f'rmdir "{gone}"; exec "$@"'
    start = (sys.executable, installed.folder / "start", "exec", "--gpus", "1", "--")
    assert ran("sh", "-c", script, "sh", *start, *LOOK, cwd=gone, env=env).cpus == FAR
