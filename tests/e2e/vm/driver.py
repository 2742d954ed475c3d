"""NVIDIA's driver in the guest: a folder, and a library that answers from facts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.e2e.vm.inside import PCI_FOLDER, output

FACTS = Path("/tmp/nvml.facts")  # noqa: S108 - nobody else is here
LIBRARY = "/built"  #: the folder of the library
NAME = "libnvidia-ml.so.1"


def addresses() -> list[str]:
    """Return where the GPUs are."""
    is_gpu = (it.name for it in PCI_FOLDER.iterdir() if (it / "class").read_text() == "0x030000\n")
    return sorted(is_gpu)


def have_driver() -> None:
    """Have NVIDIA's driver hold the GPUs, and its library answer to what is started from here."""
    hold_gpus()
    # Where the dynamic linker looks by default: programs here are forks, which read no new path.
    link = Path("/usr/lib", NAME)
    link.unlink(missing_ok=True)
    link.symlink_to(Path(LIBRARY, NAME))
    os.environ.update(LD_LIBRARY_PATH=LIBRARY, NVML_FACTS=str(FACTS))


def hold_gpus(minors: Sequence[int] = range(8)) -> None:
    """Have NVIDIA's driver hold the GPUs: they are its then, whoever made them."""
    output("mount", "-t", "tmpfs", "tmpfs", "/proc/driver")
    for address, minor in zip(addresses(), minors, strict=True):
        folder = Path("/proc/driver/nvidia/gpus", address)
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Device Minor: \t {minor}\n")
    Path("/proc/driver/nvidia/version").write_text("NVRM version: 550.54.15\n")


def tell(users: Mapping[int, Sequence[int]]) -> None:
    """Have NVML say which process uses which GPUs, a GiB of each."""
    lines = ["driver 550.54.15"]
    for index, address in enumerate(addresses()):
        lines += ["gpu", f"uuid GPU-{index:08d}", f"pci 0000{address}", f"minor {index}"]
        lines += [f"process compute {pid} {2**30}" for pid in users if index in users[pid]]
    new = FACTS.with_suffix(".new")
    new.write_text("\n".join((*lines, "")))
    new.rename(FACTS)
