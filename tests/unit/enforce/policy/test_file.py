"""The policy's file: read anew when it changes, and what was read before stands when it breaks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from affinityd.daemon.policy_document import parse
from affinityd.enforce.policy.file import MAX_FILE, PolicyFile
from affinityd.enforce.policy.identity import ProcessIdentity
from affinityd.enforce.policy.model import PolicyState
from affinityd.enforce.policy.policy import Policy

ALL, EVEN = 'mode = "all"\n', 'mode = "even"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "policy.toml"


def mode(file: PolicyFile) -> str | None:
    """Return the mode that counts now; None: no policy does."""
    policy = file.current()
    return None if policy is None else policy.defaults.options.mode


def named(path: Path) -> PolicyFile:
    return PolicyFile(os.fspath(path), parse=parse, is_optional=False)


def test_what_the_file_says_counts_and_when_it_was_read_is_known(path: Path) -> None:
    path.write_text(f'{ALL}[[rule]]\nuser = "bob"\nleave = true\n')
    file = named(path)
    assert file.state == PolicyState(file=str(path))
    before = time.time()
    policy = file.current()
    assert policy is not None
    assert policy.treatment(ProcessIdentity(user="bob")).leave
    assert file.state.read is not None
    assert before <= file.state.read <= time.time()
    assert file.state == PolicyState(str(path), file.state.read, rules=1)


def test_a_file_that_is_the_same_is_not_parsed_again(path: Path) -> None:
    path.write_text(ALL)
    file = named(path)
    policy, state = file.current(), file.state
    path.touch()
    assert file.current() is policy
    assert file.state == state


def rewrite(path: Path) -> None:
    path.write_text(EVEN)


def replace(path: Path) -> None:
    new = path.with_name("new")
    new.write_text(EVEN)
    new.rename(path)


def rewrite_with_the_old_time(path: Path) -> None:
    stat = path.stat()
    path.write_text('mode = "even"'[: stat.st_size].ljust(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == stat.st_mtime_ns


@pytest.mark.parametrize("change", [rewrite, replace, rewrite_with_the_old_time])
def test_a_file_that_changes_counts_as_it_is_now(
    path: Path, change: Callable[[Path], None]
) -> None:
    path.write_text(f"{ALL}\n\n")
    file = named(path)
    assert mode(file) == "all"
    change(path)
    assert mode(file) == "all"
    assert mode(file) == "even"
    assert file.state.error is None


def test_half_a_file_never_counts_nor_is_it_an_error(path: Path) -> None:
    path.write_text(ALL)
    file = named(path)
    policy, state = file.current(), file.state
    for part in ("", f"{EVEN}[[rule]]\nus", f'{EVEN}[[rule]]\nuser = "bob"\nleave = true\n', ALL):
        path.write_text(part)
        assert file.current() is policy
        assert file.state == state


def test_a_config_map_changes_by_a_link_to_a_folder(tmp_path: Path) -> None:
    for folder, text in (("..1", ALL), ("..2", EVEN)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "policy.toml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.toml").symlink_to("..data/policy.toml")
    file = named(tmp_path / "policy.toml")
    assert mode(file) == "all"
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert [mode(file), mode(file)] == ["all", "even"]


def gone(path: Path) -> None:
    path.unlink()


def broken(path: Path) -> None:
    path.write_text('[[rule]]\nuser = "bob"\nmode = "nod"\n')


def no_text(path: Path) -> None:
    path.write_bytes(b'mode = "all"\n\n# \xff\n')


def too_long(path: Path) -> None:
    path.write_bytes(b"#" * (MAX_FILE + 1))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


WRONG = pytest.mark.parametrize(
    ("harm", "error"),
    [
        (gone, "it cannot be read: No such file or directory"),
        (broken, "rule 1 (user = 'bob'): mode: 'nod': it is no mode; did you mean node?"),
        (no_text, "it is not UTF-8 (at line 3)"),
        (too_long, "it cannot be read: longer than 65536 bytes"),
        (pipe, "it cannot be read: not a regular file"),
        (device, "it cannot be read: not a regular file"),
        (folder, "it cannot be read: not a regular file"),
        (circle, "it cannot be read: Too many levels of symbolic links"),
    ],
)


@WRONG
def test_what_was_read_stands_when_the_file_is_harmed_and_is_read_anew_when_mended(
    path: Path, harm: Callable[[Path], None], error: str
) -> None:
    path.write_text(ALL)
    file = named(path)
    policy, read = file.current(), file.state.read
    harm(path)
    file.current()
    for _ in range(3):
        assert file.current() is policy
        assert file.state == PolicyState(str(path), read, rules=0, error=error)
    new = path.with_name("new")
    new.write_text(ALL)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    new.rename(path)
    assert [mode(file), mode(file)] == ["all"] * 2
    assert file.state.error is None


@WRONG
def test_nothing_counts_where_none_was_ever_read(
    path: Path, harm: Callable[[Path], None], error: str
) -> None:
    path.touch()
    harm(path)
    file = named(path)
    assert file.current() is None
    assert file.state == PolicyState(str(path), error=error)
    if harm is broken:
        path.write_text(EVEN)
        assert mode(file) == "even"


def test_a_file_that_nobody_named_need_not_be_there(path: Path) -> None:
    file = PolicyFile(os.fspath(path), parse=parse, is_optional=True)
    assert file.current() == Policy()
    assert file.state == PolicyState()
    path.write_text(ALL)
    assert [mode(file), mode(file)] == ["node", "all"]
    assert file.state.file == str(path)


def test_a_file_that_nobody_named_is_gone_at_the_second_look(path: Path) -> None:
    path.write_text(ALL)
    file = PolicyFile(os.fspath(path), parse=parse, is_optional=True)
    assert mode(file) == "all"
    path.unlink()
    assert mode(file) == "all"
    path.write_text(EVEN)  # as an editor does
    assert [mode(file), mode(file)] == ["all", "even"]
    path.unlink()
    assert [mode(file) for _ in range(3)] == ["even", "node", "node"]
    assert file.state == PolicyState()


def test_a_file_that_nobody_named_and_is_broken_counts_as_broken(path: Path) -> None:
    path.write_text("mode")
    file = PolicyFile(os.fspath(path), parse=parse, is_optional=True)
    assert file.current() is None
    assert file.state.file == str(path)
    assert file.state.error is not None


def test_a_byte_order_mark_and_the_ends_of_windows_lines_do_no_harm(path: Path) -> None:
    path.write_bytes(b'\xef\xbb\xbf# ours\r\nmode = "all"\r\n')
    assert mode(named(path)) == "all"
