"""The policy's file: read anew when it changes, and what was read before stands when it breaks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.daemon.policy_document import parse
from affinityd.enforce.policy import MAX_FILE, Policy, PolicyFile, PolicyState

ALL, EVEN = 'mode = "all"\n', 'mode = "even"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.toml"
    path.write_text(f"{ALL}\n\n")
    return path


def opened(path: Path, *, is_optional: bool = False) -> PolicyFile:
    """Return a file that was named, or the one that need not be there."""
    return PolicyFile(os.fspath(path), parse=parse, is_optional=is_optional)


def modes(file: PolicyFile, looks: int = 1) -> list[str | None]:
    """Return the mode that counts at each look from now on; None: no policy does."""
    policies = [file.current() for _ in range(looks)]
    return [None if it is None else it.defaults.options.mode for it in policies]


def test_what_the_file_says_counts_and_when_it_was_read_is_known(path: Path) -> None:
    path.write_bytes(
        b'\xef\xbb\xbf# ours\r\nmode = "all"\r\n[[rule]]\r\nuser = "bob"\nleave = true'
    )
    file = opened(path)
    assert file.state == PolicyState(file=str(path))
    before = time.time()
    policy = file.current()
    assert policy is not None
    assert [it.treatment.leave for it in policy.rules] == [True]
    state = file.state
    assert before <= (state.read or 0) <= time.time()
    assert state == PolicyState(str(path), state.read, rules=1)
    path.touch()
    assert (file.current() is policy, file.state) == (True, state)  # it is not parsed again


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_text(EVEN)
    new.rename(path)


def rewrite_with_the_old_time(path: Path) -> None:
    stat = path.stat()
    path.write_text(EVEN.ljust(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (stat.st_mtime_ns, stat.st_size)


@pytest.mark.parametrize("change", [replace, rewrite_with_the_old_time])
def test_a_file_that_changes_is_read(path: Path, change: Callable[[Path], None]) -> None:
    file = opened(path)
    assert modes(file) == ["all"]
    change(path)
    assert modes(file, 2) == ["all", "even"]
    assert file.state.error is None


def test_half_a_file_never_counts_nor_is_it_an_error(path: Path) -> None:
    file = opened(path)
    policy, state = file.current(), file.state
    for part in ("", f"{EVEN}[[rule]]\nus", f'{EVEN}[[rule]]\nuser = "bob"\nleave = true\n', ALL):
        path.write_text(part)
        assert (file.current() is policy, file.state) == (True, state)


def test_a_config_map_changes_by_a_link_to_a_folder(tmp_path: Path) -> None:
    for folder, text in (("..1", ALL), ("..2", EVEN)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "policy.toml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.toml").symlink_to("..data/policy.toml")
    file = opened(tmp_path / "policy.toml")
    assert modes(file) == ["all"]
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert modes(file, 2) == ["all", "even"]


MISSPELLED = "[[rule]]\nuser = 'b'\nmod = 1"


@pytest.mark.parametrize("was_read", [True, False])
@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (str, "it cannot be read: No such file or directory"),
        (os.mkfifo, "it cannot be read: not a regular file"),
        (lambda path: path.symlink_to("/dev/zero"), "it cannot be read: not a regular file"),
        (lambda path: path.symlink_to(path), "it cannot be read: Too many levels of symbolic l"),
        (lambda path: path.write_text(MISSPELLED), "rule 1 (user = 'b'): unknown 'mod'"),
        (lambda path: path.write_bytes(b"#\n\n\xff"), "it is not UTF-8 (at line 3)"),
        (lambda path: path.write_text("#" * MAX_FILE + "#"), "it cannot be read: longer than 6553"),
    ],
)
def test_what_was_read_stands_when_the_file_is_harmed_and_else_nothing_counts(
    path: Path, harm: Callable[[Path], object], error: str, *, was_read: bool
) -> None:
    file = opened(path)
    policy, read = (file.current(), file.state.read) if was_read else (None, None)
    path.unlink()
    harm(path)
    file.current()
    for _ in range(3):
        assert file.current() is policy
        assert (file.state.error or "").startswith(error)
        assert file.state == PolicyState(str(path), read, error=file.state.error)
    replace(path)
    assert modes(file, 2)[1] == "even"
    assert file.state.error is None


def test_a_file_that_was_not_named_need_not_be_there(path: Path) -> None:
    path.unlink()
    file = opened(path, is_optional=True)
    assert (file.current(), file.state) == (Policy(), PolicyState())
    path.write_text(ALL)
    assert modes(file, 2) == ["node", "all"]
    assert file.state.file == str(path)
    path.unlink()
    assert modes(file) == ["all"]
    path.write_text(EVEN)  # as an editor does
    assert modes(file, 2) == ["all", "even"]
    path.unlink()
    assert modes(file, 3) == ["even", "node", "node"]
    assert file.state == PolicyState()
    path.write_text("mode")
    broken = opened(path, is_optional=True)
    assert (broken.current(), broken.state.file) == (None, str(path))
