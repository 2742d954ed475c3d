"""The daemon of these measurements, and its peer; both over a unix socket.

`live` runs affinityd on this machine as if it were a DGX A100: `/sys/devices/system` is mounted
over in a mount namespace of the daemon's own, and a real library answers for NVML. So it finds
out the mask and cgroup of each caller. Needs root and gcc.

The peer is FastAPI with a route that returns a constant, on uvicorn as it comes:

    python -m bench.daemon SOCKET BYTES
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

from tests.support.daemons import Daemon, eventually
from tests.support.machines.facts import machine
from tests.support.made_nodes import DRIVER, running_on

GPUS = 8
PEER = "a FastAPI route that returns a constant"


@contextmanager
def live(folder: Path, *arguments: str) -> Iterator[Daemon]:
    """Run the daemon, from its first plan on."""
    dgx = machine("dgx-a100")
    lines = [f"driver {DRIVER}"]
    for number, gpu in enumerate(dgx.gpus):
        lines += ["gpu", f"uuid GPU-{number}a1f0c3e-51aa-9d02-4c1e-0b7de3f1a001"]
        lines += [f"minor {number}", f"pci 0000{gpu.pci_bus_id.upper()}", "model NVIDIA A100"]
    folder.mkdir()
    with running_on(dgx, folder, "\n".join([*lines, ""]), *arguments) as daemon:
        assert daemon.plan("gpus=0&mode=node")["allowed"]["source"] == "caller"
        yield daemon


def peer_command(path: Path, size: int) -> list[str]:
    """Return the command that runs the peer: it answers so many bytes to any path."""
    return [sys.executable, "-m", "bench.daemon", str(path), str(size)]


@contextmanager
def peer(path: Path, size: int) -> Iterator[Popen[bytes]]:
    """Run the peer from the moment that it listens."""
    with Popen(peer_command(path, size), stdout=DEVNULL, stderr=DEVNULL) as process:
        try:
            eventually(path.exists, "the peer listens")
            yield process
        finally:
            process.terminate()


def resident(process: int) -> int:
    """Return the resident memory of a process in bytes, proc_pid_status(5)."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) * 1024


def main() -> None:
    """Be the peer."""
    # Imported here: the others of this module's functions need neither.
    import uvicorn  # noqa: PLC0415
    from fastapi import FastAPI, Response  # noqa: PLC0415

    path, size = sys.argv[1:]
    app, body = FastAPI(), b"x" * int(size)

    @app.get("/{target:path}")
    async def constant(target: str) -> Response:  # noqa: ARG001 - the route's parameter
        return Response(body, media_type="application/json")

    uvicorn.run(app, uds=path, log_level="critical", access_log=False, backlog=2048)


if __name__ == "__main__":
    main()
