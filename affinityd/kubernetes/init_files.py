"""The files that `affinityd init` writes for a pod: scripts that pin, and facts about its GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shlex import quote

from affinityd.config import ON
from affinityd.errors import OutputError
from affinityd.kubernetes.node_plan import NodePlan
from affinityd.linux.files import EXECUTABLE, READABLE, write_whole

FILES = Path(__file__).with_name("files")
SCRIPTS = {
    "run": ("run.sh", EXECUTABLE),
    "pinning.sh": ("pinning.sh", READABLE),
}


def write_scripts(folder: Path) -> None:
    """Write `run`, and the files it sources. Raises OutputError."""
    for name, (source, mode) in SCRIPTS.items():
        _write(folder / name, (FILES / source).read_text(encoding="utf-8"), mode)


def write_settings(folder: Path, settings: Mapping[str, str], switch: str = ON) -> None:
    """Write the defaults of variables for `run`, and the switch.

    The least switch counts: `heed` of `run` sets it. Raises OutputError.
    """
    assignments = (
        f'[ -n "${{{name}-}}" ] || {name}={quote(text)}\n' for name, text in settings.items()
    )
    heed = "" if switch == ON else f"heed {switch}\n"
    _write(folder / "settings", "".join([*assignments, heed]))


def write_plan(folder: Path, plan: NodePlan) -> None:
    """Write a node's plan; each GPU's CPUs and locality are files, too. Raises OutputError."""
    gpus = folder / "gpu"
    files = {
        gpus / f"{_stem(name)}.{suffix}": text
        for rank in plan.document.ranks
        for name in rank.gpu.names or ()
        for suffix, text in (("cpulist", rank.cpulist), ("locality", rank.locality))
    }
    for path, text in files.items():
        _write(path, f"{text}\n")
    for path in gpus.glob("*.*"):
        if path not in files:  # of an instance that was there when the pod's init ran before
            with suppress(OSError):
                path.unlink()
    _write(folder / "plan.json", plan.text)


def _stem(name: str) -> str:
    """Return 0 for minor:0, renderD128 for drm:128, else the name itself."""
    return name.removeprefix("minor:").replace("drm:", "renderD").replace("/", "_")


def _write(path: Path, text: str, mode: int = READABLE) -> None:
    """Write a file atomically. Raises OutputError."""
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(EXECUTABLE)
        write_whole(path, text.encode(), mode)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
