"""Builds the libraries of GPU drivers that libnvidia_ml.c and gpu_driver.c describe."""

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-shared", "-fPIC", "-O1")


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
    return _built("libnvidia_ml.c", {"libnvidia-ml.so.1": ()})


@functools.cache
def libraries() -> Path:
    """Return the folder of CUDA's and HIP's library."""
    strict = ("-Wall", "-Werror")
    names = {"libcuda.so.1": strict, "libamdhip64.so": (*strict, "-DHIP")}
    return _built("gpu_driver.c", names)


def _built(source: str, names: dict[str, tuple[str, ...]]) -> Path:
    """Build libraries of a source; their folder goes when the test run ends."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("the tests of GPUs need gcc: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="affinityd-libraries-")
    atexit.register(folder.cleanup)
    for name, flags in names.items():
        target = Path(folder.name, name)
        subprocess.run([gcc, *FLAGS, *flags, "-o", target, HERE / source], check=True)
    return Path(folder.name)
