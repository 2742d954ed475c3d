"""Files that others read while they are written: they see the old one or the new one, whole."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

READABLE, EXECUTABLE = 0o644, 0o755  #: by everybody, whatever the umask is


def write_whole(path: Path, text: str, mode: int = READABLE) -> None:
    """Write a file beside its place and rename it. Raises OSError, and leaves nothing behind."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def sweep(path: Path) -> None:
    """Remove what writers of a file left beside it that were killed in the middle."""
    for left in path.parent.glob(f".{path.name}.*"):
        with suppress(OSError):
            left.unlink()
