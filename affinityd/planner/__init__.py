"""From a demand to a plan. Pure."""

from __future__ import annotations

#: Where a rank is, seen from its GPU; from best to worst, as a plan is summed up.
LOCALITIES = ("local", "unknown", "mixed", "remote")

#: Modes that divide the cores by the ranks' numbers and give no GPU a block of its own.
BY_RANK = frozenset(("even", "core_complex"))

#: The warnings of plans.
WARNINGS = (
    *("remote_home", "unknown_locality", "share_unavailable", "shared_gpu"),
    *("ambiguous_index", "parameter_ignored", "widened", "idle_cpus"),
    "no_local_nic",
)
