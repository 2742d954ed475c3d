"""What a daemon in a pod sees: sysfs shows the whole machine, but for the host's interfaces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

#: A network namespace with a sysfs of its own, as a container runtime mounts it.
POD = ("unshare", "--net", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
SEE = 'mount -t sysfs sysfs /sys && exec "$@"'
AS_POD = (*POD, "sh", "-c", SEE, "sh")
SEEN = """
from affinityd.discovery import discover, open_tree
from affinityd.json_codec import dumps
from affinityd.topology.document import to_document
print(dumps(to_document(discover(open_tree("/"), None))))
"""

needs_namespaces = pytest.mark.skipif(
    subprocess.run([*AS_POD, "true"], capture_output=True, check=False).returncode != 0,
    reason="no network namespaces here",
)


def seen(*before: str) -> Any:  # noqa: ANN401 - a document
    command = [*before, sys.executable, "-c", SEEN]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@needs_namespaces
def test_a_pod_sees_where_every_adapter_is_and_calls_none_by_the_hosts_name() -> None:
    host, pod = seen(), seen(*AS_POD)
    interfaces = {path.name for path in Path("/sys/class/net").iterdir()}
    for nic in host["nics"]:  # the names that InfiniBand gives are everywhere the same
        nic["names"] = [name for name in nic["names"] if name not in interfaces]
    assert pod == host
