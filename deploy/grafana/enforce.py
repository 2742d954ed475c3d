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
            about="Daemons by mode of --enforce. One that should pin and cannot is in observe.",
        ),
        stat_of(
            "GPUs that ran far",
            number(gpus(PIN, ALLOCATION, NEITHER)),
            about="GPUs of nodes with enforcement, in the time range above: a process was far "
            "after its first ten seconds. Each GPU is in one of the next three panels.",
        ),
        stat_of(
            "… and a pin fixes it",
            number(gpus(PIN), ALLOCATION, NEITHER),
            about="The cpusets of their processes have near CPUs. In mode observe, a pin would fix "
            "them. In mode pin, most are pinned before they appear here: see the pins below.",
            levels=looks.NONE_IS_BETTER,
        ),
        stat_of(
            "… that need another allocation",
            number(gpus(ALLOCATION)),
            about="At least once, a job on the GPU was given no CPU near it. No pin helps. "
            "`affinityd enforce` on the node names the scheduler's setting to change.",
            levels=looks.NONE_IS_GOOD,
        ),
        stat_of(
            "… that are left alone",
            number(gpus(NEITHER), ALLOCATION),
            about="By the policy, by AFFINITYD=off of the job, or because the process is in no "
            "job. The panels below have the reasons.",
        ),
        stat_of(
            "What hinders enforcement",
            Query(or_none(f"sum({of('affinityd_enforce_hindered')})"), "cannot pin"),
            Query(or_none(f"sum({of('affinityd_enforce_policy_error')})"), "policy error"),
            Query(or_none(f"count({of('affinityd_enforce_notices')} > 0)"), "cannot see all"),
            about="Daemons that should pin and can only observe; with an error in their policy "
            "file; that cannot see environments or the processes of a GPU. `affinityd enforce` "
            "on the node, and the daemon's log, say why.",
            levels=looks.NONE_IS_GOOD,
        ),
        graph_of(
            "Which processes does a pin fix?",
            Query(f"sum by (cause) ({of('affinityd_enforce_would_pin_processes')})", "{{cause}}"),
            about="Processes that do not run where their plan puts them. Mask: the mask has far "
            "CPUs. Unpinned: there is no pin. Share: near, but on CPUs of another rank. In mode "
            "pin, they are pinned after the next scan.",
            unit=looks.COUNT,
            stacked=True,
            colors=DRIFT_COLORS,
        ),
        graph_of(
            "Which processes are left alone, and why?",
            Query(f"sum by (reason) ({of('affinityd_enforce_left_processes')}) > 0", "{{reason}}"),
            about="Processes that are far, or not where their plan puts them, and are not pinned. "
            "The table below explains each reason.",
            unit=looks.COUNT,
            stacked=True,
            colors={"allocation": looks.RED, "given_up": looks.ORANGE},
        ),
        graph_of(
            "What were the results of the pins?",
            Query(_grown(of, "pins_total", "outcome"), "{{outcome}}"),
            Query(_grown(of, "resets_total"), "reset by something else"),
            about="Each pin of a process counts. Cut: the cpuset had shrunk. Unsettled: the "
            "process starts threads faster than they are pinned; the next scan continues. Many "
            "resets: a runtime such as OpenMP binds its threads; the daemon then gives up.",
            unit=looks.COUNT,
        ),
        words_of("Left alone: why, and what to do", LEFT_ALONE),
    ]


def _grown(of: Selector, counter: str, by: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (increase({of(f'affinityd_enforce_{counter}')}[$__rate_interval]))"
