"""Small machines with one unusual feature each, written where a test needs them."""

from collections.abc import Iterable, Mapping, Sequence

from affinityd.cpuset import parse_list
from affinityd.machines import build
from affinityd.topology.model import Topology


def made(
    nodes: Mapping[int, str],
    gpus: Sequence[int | None] = (0,),
    *,
    threads: int = 1,
    siblings: str = "split",
    packages: Mapping[int, str] | None = None,
    distances: Iterable[tuple[str, str, int]] = (),
    memoryless: Iterable[int] = (),
    online: str | None = None,
    cores_per_llc: int | None = None,
) -> Topology:
    """Return a machine with these nodes (number: cpulist) and a GPU for each entry of `gpus`.

    Without `packages` all CPUs are in one package. CPUs of `packages` may be in no node.
    """
    lists = packages or {0: ",".join(filter(None, nodes.values()))}
    cpus = 1 + max(max(parse_list(text)) for text in lists.values())
    facts = {
        "name": "made",
        "cores": cpus // threads,
        "threads": threads,
        "siblings": siblings,
        "packages": {str(number): text for number, text in lists.items()},
        "nodes": [
            {"nodes": str(number), "cpus": text, "memory_mib": 0 if number in memoryless else 1024}
            for number, text in nodes.items()
        ],
        "cores_per_llc": cores_per_llc,
        "distances": [list(row) for row in distances],
        "gpus": [
            {
                "vendor": "nvidia",
                "devices": [
                    {"pci": f"0000:{16 + place:02x}:00.0", "node": node}
                    for place, node in enumerate(gpus)
                ],
            }
        ],
    }
    return build(facts if online is None else {**facts, "online": online})
