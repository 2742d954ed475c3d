"""The unit gives the daemon what the table says, and nothing else."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.systemd.test_blinded import MOUNTS
from tests.e2e.systemd.unit_manager import UNIT, needs_manager, started
from tests.support import privileges
from tests.support.daemons import Daemon, eventually

ENFORCE = UNIT.parent / f"{UNIT.name}.d/enforce.conf"

GIVEN = 4.0  #: seconds in which a daemon that lacks a group of system calls may show that it works

#: Features whose lines in the drop-in are comments: their user chooses them.
CHOSEN = ("environments", "memory that follows")


def values(text: str, name: str, mark: str = "") -> list[set[str]]:
    """Return the words of each line of a directive; `mark`: what is before it."""
    lines = re.findall(rf"^{mark}{name}=(.*)$", text, re.MULTILINE)
    return [set(line.split()) for line in lines]


def capabilities(name: str) -> set[str]:
    return {f"CAP_{it}" for it in privileges.needs(name, "capabilities")}


def test_the_unit_has_one_folder_to_write_to_and_offers_what_device_files_take() -> None:
    unit = UNIT.read_text()
    assert values(unit, "CapabilityBoundingSet") == [set()]
    (folder,) = values(unit, "RuntimeDirectory")
    assert {f"/run/{it}" for it in folder} == set(privileges.items("writes"))
    assert values(unit, "ReadWritePaths") == []
    assert values(unit, "ProtectSystem") == [{"strict"}]
    (offered,) = values(unit, "CapabilityBoundingSet", mark="#   ")
    assert offered == capabilities("the audit of device files")
    allowed, left_out = values(unit, "SystemCallFilter")
    assert allowed == {"@system-service"}
    assert left_out == {"~@privileged", "@resources", *privileges.UNUSED_GROUPS}


def test_the_drop_in_has_what_pinning_takes_and_offers_what_else_enforcing_may() -> None:
    text = ENFORCE.read_text()
    assert values(text, "CapabilityBoundingSet") == [capabilities("enforce pin")]
    assert values(text, "SystemCallFilter") == [set(privileges.needs("enforce pin", "calls"))]
    offered = values(text, "CapabilityBoundingSet", mark="#")
    own = [{f"CAP_{it}" for it in privileges.FEATURES[name].capabilities} for name in CHOSEN]
    assert offered == own
    (calls,) = values(text, "SystemCallFilter", mark="#")
    assert calls == set(privileges.FEATURES["memory that follows"].calls)


@contextmanager
def without(groups: str) -> Iterator[Daemon]:
    """Run the unit without these groups of system calls."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        less = f"SystemCallFilter=~{groups}" if groups else ""
        drop_in = f"[Service]\nEnvironment=AFFINITYD_LISTEN=127.0.0.1:0\n{less}\n"
        command = "-m affinityd serve --scan-interval 1"
        with started(folder, command, {"less.conf": drop_in}, MOUNTS) as daemon:
            yield daemon


def works(daemon: Daemon) -> bool:
    """Whether it plans, looks at processes, and publishes."""
    try:
        answers = [daemon.get(path).status for path in ("/readyz", "/plan?mode=all", "/audit")]
    except OSError:
        return False
    return answers == [200] * 3 and daemon.socket.with_name("node.json").exists()


@needs_manager
def test_the_unit_plans_looks_and_publishes() -> None:
    with without("") as daemon:
        eventually(lambda: works(daemon), "it does all")


@needs_manager
@pytest.mark.parametrize("group", privileges.GROUPS)
def test_without_a_group_of_system_calls_it_does_not_do_all(group: str) -> None:
    with without(group) as daemon:
        end = time.monotonic() + GIVEN
        while time.monotonic() < end:
            assert not works(daemon), f"{group} is not needed"
            time.sleep(0.2)
