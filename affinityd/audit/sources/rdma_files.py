"""The RDMA devices that a process has open, and the variables that choose them.

Sources: proc_pid_fd(5), proc_pid_environ(5); /sys/class/infiniband_verbs/uverbsN/ibdev, kernel
drivers/infiniband/core/uverbs_main.c; Slingshot's files are /dev/cxiN.
"""

# ruff: noqa: PTH115 - a process may have thousands of files

from __future__ import annotations

import os
from contextlib import suppress

from affinityd.audit.sources.nic_use import NicUse
from affinityd.linux.files import environment_of, listed, text
from affinityd.request.environment import NIC_VARIABLES

VERBS, SLINGSHOT = "/dev/infiniband/uverbs", "/dev/cxi"


def nic_use(pid: int, root: str = "") -> NicUse:
    """Return a process's choice of RDMA devices, and those that it has open, where readable."""
    environ = environment_of(pid, root) or {}
    variables = {name: said for name in NIC_VARIABLES.values() if (said := environ.get(name))}
    return NicUse(variables, tuple(sorted(_opened(f"{root}/proc/{pid}/fd", root))))


def _opened(folder: str, root: str) -> set[str]:
    found = set()
    for name in listed(folder):
        with suppress(OSError):
            file = os.readlink(f"{folder}/{name}")
            if file.startswith(VERBS):
                number = file.removeprefix(VERBS)
                found.add(text(f"{root}/sys/class/infiniband_verbs/uverbs{number}/ibdev"))
            elif file.startswith(SLINGSHOT):
                found.add(file.removeprefix("/dev/"))
    return found - {""}
