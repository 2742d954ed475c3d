"""A real daemon on a made node, and what its tests ask of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from affinityd.audit.document import AuditDocument
from tests.support.daemons import Daemon, eventually
from tests.support.documents import exactly
from tests.support.nvml.shared_object import environment

#: Asks for a path as another user.
ASK = """
import os, socket, sys
path, target, user, *groups = sys.argv[1:]
os.setgroups([int(group) for group in groups])
os.setgid(int(user))
os.setuid(int(user))
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(path)
    request = f"GET {target} HTTP/1.1\\r\\nhost: x\\r\\nconnection: close\\r\\n\\r\\n"
    connection.sendall(request.encode())
    while part := connection.recv(65536):
        sys.stdout.write(part.decode())
"""

Counts = Mapping[str, float]


@dataclass
class AskedNode:
    """A daemon on a made node, and its folder."""

    daemon: Daemon
    folder: Path

    def tell(self, facts: str) -> None:
        """Have NVML answer by these facts, from the next scan on."""
        environment(facts, self.folder)

    def audit(self) -> Any:  # noqa: ANN401 - a document
        reply = self.daemon.get("/audit")
        assert reply.status == 200, reply.text
        exactly(AuditDocument, reply.body)
        return reply.json

    def samples(self, name: str, label: str = "pci_bus_id") -> Counts:
        """Return a metric's samples: the value of one label → the sum of those that have it."""
        rows = re.findall(
            rf"^affinityd_{name}(?:\{{(.*)\}})? (\S+)$",
            self.daemon.get("/metrics").text,
            re.MULTILINE,
        )
        found: dict[str, float] = {}
        for labels, value in rows:
            key = dict(re.findall(r'(\w+)="(.*?)"', labels)).get(label, "")
            found[key] = found.get(key, 0.0) + float(value)
        return found

    def wait_for_scans(self, number: int) -> None:
        for _ in range(number):
            self._wait_for_another(self.audit()["time"])

    def scans_until(self, condition: Callable[[], object], what: str) -> int:
        """Wait until something holds; return how many scans there were meanwhile."""
        times = {self.audit()["time"]}

        def holds() -> object:
            times.add(self.audit()["time"])
            return condition()

        eventually(holds, what)
        return len(times) - 1

    def ask_as(self, user: int, *groups: int, target: str = "/audit") -> Any:  # noqa: ANN401 - a document
        words = (str(self.daemon.socket), target, str(user), *map(str, groups))
        command = [sys.executable, "-I", "-S", "-c", ASK, *words]
        asked = subprocess.run(command, capture_output=True, text=True, check=True)
        head, _, body = asked.stdout.partition("\n\n")
        assert head.startswith("HTTP/1.1 200 "), asked.stdout
        return json.loads(body)

    def _wait_for_another(self, last: str) -> None:
        eventually(lambda: self.audit()["time"] != last, "there is a new scan")
