"""Builds the NVML library from libnvidia_ml.c."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path


def environment(facts: str, folder: Path) -> dict[str, str]:
    r"""Return the variables with which a program's NVML answers from these facts.

    The facts are written into `folder`; another call may change them while the program runs. A
    character from \udc80 on stands for a byte that is no UTF-8.
    """
    path, new = folder / "nvml.facts", folder / "nvml.facts.new"
    new.write_text(facts, errors="surrogateescape")
    new.rename(path)
    return {"LD_LIBRARY_PATH": str(_nvml()), "NVML_FACTS": str(path)}


@functools.cache
def _nvml() -> Path:
    """Return the library's folder, which is removed when the test run ends."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("the tests of GPUs need gcc: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="affinityd-built-")
    atexit.register(folder.cleanup)
    target = Path(folder.name, "libnvidia-ml.so.1")
    source = Path(__file__).with_name("libnvidia_ml.c")
    subprocess.run([gcc, "-O1", "-shared", "-fPIC", "-o", target, source], check=True)
    return target.parent
