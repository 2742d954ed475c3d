"""Builds the libnvidia-ml.so.1 whose facts libnvidia_ml.c describes."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("libnvidia_ml.c")


def environment(facts: str, folder: Path) -> dict[str, str]:
    r"""Return the variables with which a program's NVML answers from these facts.

    They are written into `folder`, and may be written anew, by this, while it runs. A character
    from \udc80 on stands for a byte that is no UTF-8.
    """
    path, new = folder / "nvml.facts", folder / "nvml.facts.new"
    new.write_text(facts, errors="surrogateescape")
    new.rename(path)
    return {"LD_LIBRARY_PATH": str(_built()), "NVML_FACTS": str(path)}


@functools.cache
def _built() -> Path:
    """Build the library once a test run; return its folder, which goes when the run ends."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("the tests of NVML need gcc: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="affinityd-nvml-")
    atexit.register(folder.cleanup)
    library = Path(folder.name, "libnvidia-ml.so.1")
    subprocess.run([gcc, "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library.parent
