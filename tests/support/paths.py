"""Where things are: the checkout, what the tests have written down, and folders of their own."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DATA = REPOSITORY / "tests" / "data"


@contextmanager
def open_folder(prefix: str = "tmp") -> Iterator[Path]:
    """Yield a folder that other users may enter, with a path short enough for that of a socket."""
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
