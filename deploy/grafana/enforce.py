"""The rows about enforcement, the same on both dashboards: what it does, and what it would do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from grafana_foundation_sdk.cog.builder import Builder

from deploy.grafana import looks
from deploy.grafana.panels import graph_of, stat_of, words_of
from deploy.grafana.queries import Query, Selector, or_none
from deploy.grafana.remedies import LEFT_ALONE

#: Recorded by rules/affinityd.yaml: GPUs that run far, by their remedy.
REMEDIED = "node_gpu_remedy:affinityd_gpu_numa_mismatch:max"
PIN, ALLOCATION, NEITHER = "pin", "allocation", "neither"

DRIFT_COLORS = {"mask": looks.ORANGE, "unpinned": looks.YELLOW, "share": looks.BLUE}


def pinning(of: Selector) -> Sequence[Builder[Any]]:
    """Return the panels that both views have."""

    def gpus(*remedies: str) -> str:
        """Return each GPU that had one of these remedies in the time range."""
        recorded = of(REMEDIED, f'remedy=~"{"|".join(remedies)}"')
        return f"max by (node, gpu, pci_bus_id) (last_over_time({recorded}[$__range]))"

    def number(these: str, *unless: str) -> Query:
        others = f" unless {gpus(*unless)}" if unless else ""
        return Query(or_none(f"count({these}{others})"))

    return [
        stat_of(
            "What the daemons do",
            Query(f"sum by (mode) ({of('affinityd_enforce_mode')})", "{{mode}}"),
            Query(
                or_none(
                    f"count({of('affinityd_build_info')} unless on (job, instance) "
                    f"{of('affinityd_enforce_mode')})"
                ),
                "off",
            ),
            about="Daemons by --enforce. Who was to pin and cannot is among those that observe.",
        ),
        stat_of(
            "GPUs that ran far",
            number(gpus(PIN, ALLOCATION, NEITHER)),
            about="In the time range above, where a daemon enforces: a process of theirs was far "
            "when it had run for ten seconds. Each is counted once, in one of the next three.",
        ),
        stat_of(
            "… and a pin fixes it",
            number(gpus(PIN), ALLOCATION, NEITHER),
            about="All of their processes had near CPUs. A daemon that observes would fix them; "
            "one that pins does so before most of them are seen here: look at its pins below.",
            levels=looks.NONE_IS_BETTER,
        ),
        stat_of(
            "… that need another allocation",
            number(gpus(ALLOCATION)),
            about="A job of theirs was given no CPU near its GPU, at least once. No pin helps: it "
            "is the scheduler's to fix, and affinityd enforce on the node has the line that does.",
            levels=looks.NONE_IS_GOOD,
        ),
        stat_of(
            "… that are left alone",
            number(gpus(NEITHER), ALLOCATION),
            about="By the policy, by the job's own wish, or because they are no job's; below is "
            "why.",
        ),
        stat_of(
            "In its way",
            Query(or_none(f"sum({of('affinityd_enforce_hindered')})"), "hindered"),
            Query(or_none(f"sum({of('affinityd_enforce_policy_error')})"), "policy broken"),
            Query(or_none(f"count({of('affinityd_enforce_notices')} > 0)"), "half blind"),
            about="Daemons that were to pin and observe, those whose policy file has an error, "
            "and those that cannot see all that they need: environments, or the processes of "
            "a GPU. affinityd enforce on the node, and its log, say why.",
            levels=looks.NONE_IS_GOOD,
        ),
        graph_of(
            "Which processes does a pin fix?",
            Query(f"sum by (cause) ({of('affinityd_enforce_would_pin_processes')})", "{{cause}}"),
            about="Processes that do not run where they are to. Mask: held to far CPUs. Unpinned: "
            "held nowhere. Share: near, on CPUs that are another rank's by its mode. A daemon that "
            "pins has them pinned by its next look.",
            unit=looks.COUNT,
            stacked=True,
            colors=DRIFT_COLORS,
        ),
        graph_of(
            "Which are left alone, and why?",
            Query(f"sum by (reason) ({of('affinityd_enforce_left_processes')}) > 0", "{{reason}}"),
            about="Processes that do not run where they are to, or may run far away, and are not "
            "pinned. Below is what each reason means.",
            unit=looks.COUNT,
            stacked=True,
            colors={"allocation": looks.RED, "given_up": looks.ORANGE},
        ),
        graph_of(
            "What came of the pins?",
            Query(_grown(of, "pins_total", "outcome"), "{{outcome}}"),
            Query(_grown(of, "resets_total"), "reset by something else"),
            Query(_grown(of, "migrations_total", "outcome"), "memory {{outcome}}"),
            about="Processes, each time. Cut: its cpuset has become smaller meanwhile. Unsettled: "
            "it starts threads faster than they can be pinned, and the next look goes on. Many "
            "resets: a runtime binds itself, as OpenMP's do; after a few it is given up.",
            unit=looks.COUNT,
        ),
        words_of("Let alone: why, and what to do", LEFT_ALONE),
    ]


def _grown(of: Selector, counter: str, by: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (increase({of(f'affinityd_enforce_{counter}')}[$__rate_interval]))"
