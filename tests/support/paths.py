"""Paths: the checkout, the tests' recorded data, and folders for tests."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"


@contextmanager
def open_folder(prefix: str = "tmp") -> Iterator[Path]:
    """Yield a folder that other users may enter, whose path is short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
