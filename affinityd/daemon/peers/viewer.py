"""Which processes a caller may see."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from affinityd.linux.processes import overflow_uid

if TYPE_CHECKING:
    from affinityd.audit.describe import Sees
    from affinityd.daemon.peers.connection import PeerConnection

ROOT = 0


@dataclass(frozen=True)
class Viewer:
    """The processes that a caller may see; with neither field, only counts."""

    is_admin: bool = False  #: all users'
    uid: int | None = None  #: of this user

    @property
    def sees(self) -> Sees | None:
        """The processes that are shown; None: only counts."""
        from affinityd.audit.describe import everything  # noqa: PLC0415 - where they are described

        if self.is_admin:
            return everything
        return None if self.uid is None else lambda process: process.facts.uid == self.uid


def is_foreign(host: str) -> bool:
    """Whether a Host header has a site's name: neither an IP address nor a name without a dot.

    A site can have its name resolve to a user's port forwarding: a browser then asks as that user.
    """
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return "." in name
    return False


def viewer(
    connection: PeerConnection | None, admin_group: int | None, host: str = "localhost"
) -> Viewer:
    """Return the view of a caller: over TCP, from other namespaces or of a site, only counts."""
    credentials = None if connection is None else connection.credentials
    if (
        connection is None
        or credentials is None
        or credentials.pid <= 0
        or credentials.uid == overflow_uid()
        or is_foreign(host)
    ):
        return Viewer()
    if credentials.uid == ROOT or admin_group in connection.groups:
        return Viewer(is_admin=True)
    return Viewer(uid=credentials.uid)
