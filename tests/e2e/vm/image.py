"""The virtual machine's image, made once and kept: a kernel, and a root that the kernel unpacks.

The image lies in the user's cache, in a folder named after its recipe.
"""

import fcntl
import hashlib
import lzma
import os
import re
import struct
import sys
import tempfile
from pathlib import Path

from tests.support.paths import REPOSITORY
from tests.support.tiny import ran

RECIPE = Path(__file__).with_name("image.sh")
PYPROJECT = REPOSITORY / "pyproject.toml"

KERNEL = "vmlinux"  #: an ELF file, which QEMU starts without a BIOS's or boot loader's help
ROOT = "root.cpio"


def image() -> Path:
    """Return the folder with KERNEL and ROOT."""
    required = requirements(PYPROJECT.read_text())
    recipe = "\n".join((Path(__file__).read_text(), RECIPE.read_text(), *required))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "affinityd-vm"
    folder = cache / hashlib.sha256(recipe.encode()).hexdigest()[:16]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other makers wait for this one
        if not folder.exists():
            _make(folder, required)
    return folder


def requirements(pyproject: str) -> list[str]:
    """Return what the daemon and the suite `kubernetes` require, as words for the recipe."""
    extra = re.search(r"^daemon = \[\n(.*?)^\]", pyproject, re.MULTILINE | re.DOTALL)
    names = re.findall(r'^ *"(.*?)"', extra[1] if extra else "", re.MULTILINE)
    names += re.findall(r'^kubernetes = \["(.*?)"\]', pyproject, re.MULTILINE)
    return [requirement.replace(" ", "") for requirement in names]


def unpacked(kernel: bytes) -> bytes:
    """Return the ELF file in a packed kernel, which an emulated CPU would take long to unpack.

    The kernel's header says where: setup_sects, payload_offset and payload_length, which are in
    Documentation/arch/x86/boot.rst.
    """
    setup_sectors = kernel[0x1F1]
    offset, length = struct.unpack_from("<II", kernel, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    return lzma.LZMADecompressor().decompress(kernel[start : start + length])


def _make(folder: Path, required: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        ended = ran(RECIPE, made, sys.executable, *required)
        assert ended.status == 0, ended
        packed = made / "vmlinuz"
        (made / KERNEL).write_bytes(unpacked(packed.read_bytes()))
        packed.unlink()
        made.rename(folder)  # whole or not at all
