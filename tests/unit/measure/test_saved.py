"""The file of a measurement: written, read back, and believed of the same GPUs alone."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from affinityd.errors import OutputError
from affinityd.measure.document import Figure, GpuRatios, read, save
from tests.support.machines.by_hand import made
from tests.support.measurements import GPU, copies, measurement

FOUND = measurement([copies(0, 54.0), copies(1, 30.0), copies(1, None, why="no")])
HERE = made({0: "0-1", 1: "2-3"}, gpus=[0])


def test_it_is_read_back_as_it_was_written_where_no_folder_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "measure.json"
    usual = os.umask(0o077)
    try:
        save(FOUND, path)
    finally:
        os.umask(usual)
    assert [it.stat().st_mode & 0o777 for it in (path.parent, path)] == [0o755, 0o644]
    back = read(os.fspath(path))
    assert (list(back.figures), back.sentence) == (FOUND.figures, FOUND.sentence)
    assert GpuRatios(os.fspath(path))(HERE) == ({("nvidia", 0): {0: 1.0, 1: 1.8}}, ())


@pytest.mark.parametrize(
    "odd", [copies(7, 30.0), copies(1, 5e-324)], ids=["a node that is not here", "infinitely far"]
)
def test_a_figure_that_no_machine_has_gives_no_ratio(tmp_path: Path, odd: Figure) -> None:
    path = tmp_path / "measure.json"
    save(replace(FOUND, figures=[copies(0, 54.0), odd]), path)
    assert GpuRatios(os.fspath(path))(HERE) == ({("nvidia", 0): {0: 1.0}}, ())


def test_a_place_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written: "):
        save(FOUND, tmp_path / "file" / "measure.json")


@pytest.mark.parametrize(
    ("changes", "notice"),
    [
        ({"gpus": [replace(GPU, pci_bus_id="0000:20:00.0")]}, None),
        ({"gpus": [replace(GPU, uuid="GPU-another")]}, None),
        ({"version": 2}, "is of version 2, not 1"),
        ({"figures": [copies(7, 30.0)]}, None),
    ],
)
def test_what_is_not_of_this_machine_gives_no_ratio(
    tmp_path: Path, changes: dict[str, object], notice: str | None
) -> None:
    path = tmp_path / "measure.json"
    save(replace(FOUND, **changes), path)  # type: ignore[arg-type]
    found, notices = GpuRatios(os.fspath(path))(HERE)
    assert found == {}
    assert [str(notice) in it for it in notices] == [True] * (notice is not None)


@pytest.mark.parametrize(
    ("text", "notice"), [(None, None), ("{", "not JSON"), ("{}", "has no 'version'")]
)
def test_a_file_that_cannot_be_read_is_a_notice_and_a_missing_one_is_none(
    tmp_path: Path, text: str | None, notice: str | None
) -> None:
    path = tmp_path / "measure.json"
    if text is not None:
        path.write_text(text)
    found, notices = GpuRatios(os.fspath(path))(HERE)
    assert found == {}
    assert len(notices) == (notice is not None)
    assert all(str(notice) in it and it.startswith(f"{path} is not used") for it in notices)


def test_a_file_is_read_again_only_when_its_inode_size_or_time_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "measure.json"
    measured = GpuRatios(os.fspath(path))
    first, second = ({("nvidia", 0): {0: 1.0, 1: ratio}} for ratio in (1.8, 2.0))
    assert measured(HERE) == ({}, ())
    save(FOUND, path)
    assert measured(HERE) == (first, ())
    before = path.stat()
    path.write_text(path.read_text().replace("30.0", "27.0"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert measured(HERE) == (first, ()), "it looks the same"
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert measured(HERE) == (second, ())
    path.write_text("{")
    assert [len(notices) for _, notices in (measured(HERE), measured(HERE))] == [1, 1]
    save(FOUND, path)
    assert measured(HERE) == (first, ())
    hidden = path.parent.rename(tmp_path.with_name("hidden"))
    path.parent.touch()  # the file's folder is none: NotADirectoryError
    assert [len(notices) for _, notices in (measured(HERE), measured(HERE))] == [1, 1]
    path.parent.unlink()
    hidden.rename(path.parent)
    assert measured(HERE) == (first, ()), "the file is as it was"
    path.unlink()
    assert measured(HERE) == ({}, ())
