"""Processes in cgroups of version 2 that ask the daemon: what it knows of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from affinityd.daemon.peers.connection import has_peer_pidfd
from tests.e2e.vm.inside import SOCKET, cgroup, ran

ASK = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
request = f"GET /plan?mode=node&gpus=0&{sys.argv[2]} HTTP/1.0\\r\\nhost: x\\r\\n\\r\\n"
connection.sendall(request.encode())
print(connection.makefile("rb").read().partition(b"\\r\\n\\r\\n")[2].decode())
"""


def callers() -> dict[str, Any]:
    """Return what each of them is allowed."""
    own = cgroup("caller", cpus="5-9")
    below = own / "step"
    below.mkdir(exist_ok=True)  # without the controller, it has no cpuset of its own
    return {
        "has handles": has_peer_pidfd(),
        "of the root": allowed(None),
        "in a cpuset": allowed(own),
        "in a cpuset, for more": allowed(own, query="cpuset=0-31"),
        "below it, with a mask": allowed(below, "taskset", "-c", "6-7"),
    }


def allowed(group: Path | None, *before: str, query: str = "whose=caller") -> Any:  # noqa: ANN401 - of a document
    into = f"echo 0 >{group}/cgroup.procs; " if group else ""
    ask = (sys.executable, "-I", "-S", "-c", ASK, str(SOCKET), query)
    ended = ran(["sh", "-c", f'{into}exec "$@"', "sh", *before, *ask])
    return json.loads(ended["stdout"])["allowed"] if ended["status"] == 0 else ended
