"""What the panels ask Prometheus, in pieces: selectors, and the expressions that several need."""

from __future__ import annotations

from dataclasses import dataclass

#: Daemons of one cluster, scraped by any job. If no metric has a label `cluster`, the
#: variable is empty, which matches a label that is not there.
CLUSTER = 'cluster="$cluster"'
DAEMONS = f'{CLUSTER},job=~"$job"'
CHOSEN_NODES = f'{DAEMONS},node=~"$node"'  #: of the fleet view: as many as are chosen
CHOSEN_NODE = f'{DAEMONS},node="$node"'  #: of the node view: one, and no pattern

#: Recorded by rules/affinityd.yaml: `up` of all targets that are daemons.
UP = "instance:affinityd_up:known"

#: The labels that name one GPU of a node.
GPU = "gpu, pci_bus_id, uuid"

LOCAL, UNKNOWN, UNPINNED, MIXED, REMOTE = "local", "unknown", "unpinned", "mixed", "remote"
#: From the best to the worst: a GPU is shown as the worst of its processes; 0 is none.
SEVERITY = {LOCAL: 1, UNKNOWN: 2, UNPINNED: 3, MIXED: 4, REMOTE: 5}


@dataclass(frozen=True)
class Query:
    """One question to Prometheus."""

    expr: str
    legend: str = ""  #: as Grafana fills it in: {{label}}


@dataclass(frozen=True)
class Selector:
    """Picks series of the nodes that a dashboard's variable has chosen."""

    chosen: str

    def __call__(self, name: str, *matchers: str) -> str:
        """Return a metric's selector, by its labels."""
        return f"{name}{{{','.join((self.chosen, *matchers))}}}"


def worst_placement(of: Selector) -> str:
    """Return, for each GPU, the `SEVERITY` of its worst process."""
    here = {it: of("affinityd_gpu_processes", f'placement="{it}"') for it in SEVERITY}
    ranked = (f"({here[it]} > bool 0) * {severity}" for it, severity in SEVERITY.items())
    return f"max by ({GPU}) ({' or '.join(ranked)})"


def share(part: str, whole: str, by: str = "") -> str:
    """Return one sum divided by another; nothing where the whole is zero.

    What has no part, as a GPU whose place is not known, is left out of the whole too.
    """
    total = f"sum by ({by})" if by else "sum"
    return f"{total} ({part}) / ({total} ({whole} and {part}) > 0)"


def increase(selector: str, window: str) -> str:
    """Return by how much counters grew."""
    return f"increase({selector}[{window}])"


def rate(selector: str) -> str:
    """Return how fast counters grow, over the window that Grafana holds to be right."""
    return f"rate({selector}[$__rate_interval])"


def or_none(expr: str) -> str:
    """Return 0 where there is nothing to be counted: an empty panel looks like a broken one."""
    return f"({expr}) or vector(0)"
