"""Builds the libraries of GPU drivers that gpu_driver.c describes."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("gpu_driver.c")
FLAGS = {"libcuda.so.1": (), "libamdhip64.so": ("-DHIP",)}


@functools.cache
def libraries() -> Path:
    """Build them once a test run; return their folder, which goes when the run ends."""
    gcc = shutil.which("gcc")
    if gcc is None:
        raise FileNotFoundError("the tests of GPUs need gcc: apt-get install gcc libc6-dev")
    folder = tempfile.TemporaryDirectory(prefix="affinityd-gpu-driver-")
    atexit.register(folder.cleanup)
    for name, flags in FLAGS.items():
        target = Path(folder.name, name)
        command = [gcc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags]
        subprocess.run([*command, "-o", target, SOURCE], check=True)
    return Path(folder.name)
