"""The virtual machine's life: from a checkout to what a guest's script saw of it.

Everything that the guest reads is in its initial ramdisk, and all that it says goes out over two
serial ports, so that it needs neither a disk nor a network nor a folder of this machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.vm import hardware
from tests.e2e.vm.image import KERNEL, ROOT, MachineError, image

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[2]
QEMU = "qemu-system-x86_64"
PROGRAMS = (QEMU, "mmdebstrap", "bsdtar")
PATIENCE = 1800  #: seconds for a machine that takes 200 where nothing else runs
TAIL = 40  #: lines of the console that an error shows

#: What the guest has of the checkout.
CARRIED = (
    *("affinityd", "slurm", "tests/e2e/slurm/rig.py", "tests/e2e/vm"),
    *(f"tests/support/{name}.py" for name in ("daemons", "nri", "paths")),
)

#: Where the guest has what is built here.
BUILT = "built"

#: Where it has another Debian, and what it does without of that.
RELEASE = "release"
UNUSED = ("./usr/share", "./usr/lib/python3*", "./usr/bin/python3*", "./var/lib/dpkg")

#: A CPU that is possible and not online until somebody asks for it: one thread of the last core.
OFFLINE_AT_BOOT = hardware.CPUS - 1

#: Where this machine is busy, the emulated timer seems to be broken to who checks it.
KERNEL_PARAMETERS = (
    f"console=ttyS0 quiet panic=-1 maxcpus={OFFLINE_AT_BOOT} mitigations=off random.trust_cpu=on "
    "no_timer_check"
)


def boot(
    folder: Path, names: Sequence[str], *, built: Sequence[Path] = (), release: Path | None = None
) -> dict[str, dict[str, Any]]:
    """Boot the machine, with a folder for what it needs and says, and return its reports by name.

    A report is what a script, guest_NAME, prints; they run one after another. `built` are files
    that they find in /built, `release` is the root of another Debian, in /release. Raises
    MachineError, with what the machine last wrote on its console.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise MachineError(f"{', '.join(missing)} missing: `scripts/test vm`, as root, installs it")
    made = image()
    ramdisk, console, report = (folder / name for name in ("ramdisk", "console", "report"))
    _write_ramdisk(ramdisk, made / ROOT, folder / "carried", built, release)
    parameters = f"{KERNEL_PARAMETERS} GUESTS={','.join(names)}"  # the kernel hands it to init
    command = [
        *(QEMU, *hardware.options(), "-no-reboot"),
        *("-kernel", f"{made / KERNEL}", "-initrd", f"{ramdisk}", "-append", parameters),
        *("-serial", f"file:{console}", "-serial", f"file:{report}"),
    ]
    try:
        reports = _run(command, report)
    except MachineError as error:
        raise MachineError(f"{error}\n{_tail(console)}") from None
    finally:
        ramdisk.unlink()  # it is large; the rest is kept to be looked at
    if len(reports) < len(names):
        raise MachineError(f"guest_{names[len(reports)]} ended without a report\n{_tail(console)}")
    return dict(zip(names, reports, strict=True))


def _run(command: Sequence[str], report: Path) -> list[dict[str, Any]]:
    try:
        ended = subprocess.run(
            command, check=False, timeout=PATIENCE, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        raise MachineError(f"the virtual machine did not end within {PATIENCE} s") from None
    try:
        return [json.loads(line) for line in report.read_text().splitlines() if line]
    except (OSError, ValueError) as error:
        raise MachineError(
            f"the virtual machine ended without a report: {error}\n"
            f"{QEMU} ended with {ended.returncode}\n{ended.stderr}"
        ) from None


def _write_ramdisk(
    ramdisk: Path, root: Path, carried: Path, built: Sequence[Path], release: Path | None
) -> None:
    """Write the image's root and, behind it, the rest: the kernel unpacks one after another."""
    for name in CARRIED:
        source, target = REPOSITORY / name, carried / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.copy(FOLDER / "init", carried)
    for path in built:
        (carried / BUILT).mkdir(exist_ok=True)
        shutil.copy(path, carried / BUILT)
    archive = ["bsdtar", "-cf", "-", "--format", "newc", "--uid", "0", "--gid", "0"]
    with ramdisk.open("wb") as file:
        with root.open("rb") as base:
            shutil.copyfileobj(base, file)
        file.flush()
        subprocess.run([*archive, "."], cwd=carried, stdout=file, check=True)
        if release is not None:
            subprocess.run(
                [*archive, f"-s,^[.],{RELEASE},S", *(f"--exclude={it}" for it in UNUSED), "."],
                cwd=release,
                stdout=file,
                check=True,
            )


def _tail(console: Path) -> str:
    text = console.read_text(errors="replace") if console.exists() else "Its console is empty."
    return "\n".join(text.splitlines()[-TAIL:])
