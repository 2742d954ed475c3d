"""From a demand to a plan. Pure."""

from __future__ import annotations

#: The localities of a rank, from best to worst; a plan's is the worst of its ranks'.
LOCALITIES = ("local", "unknown", "mixed", "remote")

#: The warnings of plans.
WARNINGS = (
    *("remote_home", "unknown_locality", "share_unavailable", "shared_gpu"),
    *("ambiguous_index", "parameter_ignored", "widened", "idle_cpus"),
    *("no_local_nic", "not_unique"),
)
