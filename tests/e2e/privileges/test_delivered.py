"""The unit gives the daemon what the table says, and nothing else."""

from __future__ import annotations

import re

from tests.e2e.systemd.unit_manager import UNIT
from tests.support import privileges

ENFORCE = UNIT.parent / f"{UNIT.name}.d/enforce.conf"

#: Features whose lines in the drop-in are comments: their user chooses them.
CHOSEN = ("environments",)


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
    for name in ("ReadWritePaths", "PrivateNetwork", "IPAddressDeny"):
        assert values(unit, name) == []
    assert values(unit, "ProtectSystem") == [{"strict"}]
    (offered,) = values(unit, "CapabilityBoundingSet", mark="#   ")
    assert offered == capabilities("the audit of device files")
    allowed, left_out = values(unit, "SystemCallFilter")
    assert allowed == {"@system-service"}
    assert left_out == {"~@privileged", "@resources", "@aio", "@keyring"}


def test_the_drop_in_has_what_pinning_takes_and_offers_what_else_enforcing_may() -> None:
    text = ENFORCE.read_text()
    assert values(text, "CapabilityBoundingSet") == [capabilities("enforce pin")]
    assert values(text, "SystemCallFilter") == [set(privileges.needs("enforce pin", "calls"))]
    offered = values(text, "CapabilityBoundingSet", mark="#")
    needed = [{f"CAP_{it}" for it in privileges.FEATURES[name].capabilities} for name in CHOSEN]
    assert offered == needed
    assert values(text, "SystemCallFilter", mark="#") == []
