"""Builds the NVML that libnvidia_ml.c describes, and the task that slurm_task.c describes."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


def environment(facts: str, folder: Path) -> dict[str, str]:
    r"""Return the variables with which a program's NVML answers from these facts.

    They are written into `folder`, and may be written anew, by this, while it runs. A character
    from \udc80 on stands for a byte that is no UTF-8.
    """
    path, new = folder / "nvml.facts", folder / "nvml.facts.new"
    new.write_text(facts, errors="surrogateescape")
    new.rename(path)
    return {"LD_LIBRARY_PATH": str(_nvml()), "NVML_FACTS": str(path)}


@functools.cache
def _nvml() -> Path:
    return _built("libnvidia_ml.c", "libnvidia-ml.so.1", "-shared", "-fPIC").parent


@functools.cache
def slurm_task() -> Path:
    """Return a program that needs no library where it runs."""
    return _built("slurm_task.c", "slurm_task", "-Wall", "-Werror", "-static", "-fopenmp")


def _built(source: str, name: str, *flags: str) -> Path:
    """Build what a source describes; its folder goes when the test run ends."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("the tests of GPUs need gcc: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="affinityd-built-")
    atexit.register(folder.cleanup)
    target = Path(folder.name, name)
    subprocess.run([gcc, "-O1", *flags, "-o", target, HERE / source], check=True)
    return target
