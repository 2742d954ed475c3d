"""Whom connections are counted by."""

from __future__ import annotations

#: A uid, or an address.
CallerKey = int | str
