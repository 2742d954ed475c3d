"""A virtual machine from start to end: from a checkout to the report of a guest's script.

All that the guest reads is in its initial ramdisk, and all its output goes over two serial ports,
so it needs no disk, no network and no folder of this machine.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.e2e.vm import hardware
from tests.e2e.vm.image import KERNEL, ROOT, image
from tests.e2e.vm.inside import RELEASE, Document
from tests.support.tiny import ran

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[2]
QEMU = "qemu-system-x86_64"
PATIENCE = 3000  #: seconds; a machine takes 200 to 1000 if nothing else runs
TAIL = 40  #: lines of the console that a failure shows

#: Folders of the checkout that the guest has.
CARRIED = (
    *("affinityd", "slurm", "tests/e2e/vm"),
    *(
        f"tests/e2e/slurm/{name}"
        for name in ("rig.py", "slurm.conf.in", "namespace.sh", "layered.sh")
    ),
    *(f"tests/support/{name}.py" for name in ("daemons", "paths")),
    "tests/e2e/kubernetes/kubelet_plugins.py",
)

#: Files of another Debian that the guest does not need.
UNUSED = (
    *("./usr/share", "./var/lib/dpkg", "./usr/lib/python3*", "./usr/bin/python3*"),
    *("./usr/bin/etcd*", "./usr/bin/kubectl"),
)

#: A possible CPU that is offline until a test wants it online: one thread of the last core.
OFFLINE_AT_BOOT = hardware.CPUS - 1

#: Without the kernel's check of the timer: on a busy machine an emulated timer seems broken.
KERNEL_PARAMETERS = (
    f"console=ttyS0 quiet panic=-1 maxcpus={OFFLINE_AT_BOOT} mitigations=off random.trust_cpu=on "
    "no_timer_check"
)


def boot(
    folder: Path,
    name: str,
    machine: Sequence[str],
    release: Path | None = None,
    *,
    before: Sequence[str | Path] = (),
    patience: int = PATIENCE,
) -> Document:
    """Boot the machine, with a folder for its input and output; return the report of guest_NAME.

    `machine` is the hardware, in QEMU's options; `release` is the root of another Debian, in
    /release; `before` is a command that runs QEMU's.
    """
    made = image()
    ramdisk, console, report = (folder / name for name in ("ramdisk", "console", "report"))
    _write_ramdisk(ramdisk, made / ROOT, folder / "carried", release)
    parameters = f"{KERNEL_PARAMETERS} GUEST={name}"  # the kernel hands it to init
    command = [
        *(*before, QEMU, *machine, "-no-reboot"),
        *("-kernel", f"{made / KERNEL}", "-initrd", f"{ramdisk}", "-append", parameters),
        *("-serial", f"file:{console}", "-serial", f"file:{report}"),
    ]
    try:
        ended = ran(*command, timeout=patience)
    finally:
        ramdisk.unlink()  # it is large; the other files are kept for people to read
    lines = report.read_text().splitlines() if report.exists() else []
    said = console.read_text(errors="replace").splitlines() if console.exists() else []
    assert len(lines) == 1, "\n".join([*lines, f"{ended}", *said[-TAIL:]])
    return dict(json.loads(lines[0]))


def _write_ramdisk(ramdisk: Path, root: Path, carried: Path, release: Path | None) -> None:
    """Write the image's root, then other archives: the kernel unpacks one after another."""
    for name in CARRIED:
        source, target = REPOSITORY / name, carried / "checkout" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    shutil.copy(FOLDER / "init", carried)
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
