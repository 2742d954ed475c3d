"""From a demand to a plan. Pure."""

from __future__ import annotations

#: The localities of a rank, from best to worst; a plan's is the worst of its ranks'.
LOCALITIES = ("local", "unknown", "mixed", "remote")

#: Modes that divide the cores by the ranks' numbers and give no GPU a block of its own.
BY_RANK = frozenset(("even", "core_complex"))

#: The warnings of plans.
WARNINGS = (
    *("remote_home", "unknown_locality", "share_unavailable", "shared_gpu"),
    *("ambiguous_index", "parameter_ignored", "widened", "idle_cpus"),
    "no_local_nic",
)
