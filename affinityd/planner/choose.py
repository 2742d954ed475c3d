"""Which GPUs are near given CPUs: the plan's question in reverse. Pure.

All ranks of a node are assigned at once, so that each rank computes the same assignment by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import lcm

from affinityd.cpuset import CpuSet
from affinityd.errors import InvalidRequestError, UnsatisfiableError
from affinityd.topology.model import Gpu, Topology

MOST_RANKS = 256
MOST_GPUS = 64
#: In place of missing distances: a node's distance to itself; SLIT's value for unreachable nodes
#: (ACPI 6.5, §5.2.17).
OWN_DISTANCE = 10
FARTHEST = 255


def choose_gpus(
    topology: Topology, cpus_of_ranks: Sequence[CpuSet], gpus: Sequence[Gpu], each: int | None
) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of each rank, as places in `gpus`, at the least distance over all ranks.

    A rank's distance to a GPU is the mean, over its online CPUs, of the distance between the nodes
    of CPU and GPU; all places are known. `each` is as for `gpus_of_each`. If there are more ranks
    than GPUs, adjacent ranks share a GPU, as few as possible. Of assignments with equal distances
    the smallest list of places, in rank order, is returned. Raises InvalidRequestError and
    UnsatisfiableError.
    """
    ranks = len(cpus_of_ranks)
    each = gpus_of_each(ranks, len(gpus), each)
    # A list of places is written as a number with one digit for each rank, so the smaller list is
    # the smaller number. Of two lists of a rank, that with the lowest differing place is smaller.
    places = range(len(gpus))
    if each == 1:
        base = len(gpus)
    else:
        base = MOST_GPUS << len(gpus)
    crowding = base**ranks  # more than the number of any list
    unit = crowding * (1 + ranks * ranks)  # more than the cost of all crowding
    costs = []
    for rank, distances in enumerate(_distances(topology, cpus_of_ranks, gpus)):
        weight = base ** (ranks - 1 - rank)
        row = []
        for place in places:
            if each == 1:
                digit = place
            else:
                digit = -1 << (len(gpus) - place)
            row.append(distances[place] * unit + digit * weight)
        costs += [row] * each
    chosen = _assign(costs, most=-(-ranks // len(gpus)), crowding=crowding)
    gpus_of_ranks = []
    for rank in range(ranks):
        gpus_of_rank = chosen[rank * each : (rank + 1) * each]
        gpus_of_ranks.append(tuple(sorted(gpus_of_rank)))
    return tuple(gpus_of_ranks)


def deal_in_order(ranks: int, gpus: int, each: int | None) -> tuple[tuple[int, ...], ...]:
    """Return the GPUs of each rank, dealt in order; with too few GPUs, adjacent ranks share one."""
    each = gpus_of_each(ranks, gpus, each)
    if ranks > gpus:
        return tuple((rank * gpus // ranks,) for rank in range(ranks))
    gpus_of_ranks = []
    for rank in range(ranks):
        first = rank * each
        gpus_of_ranks.append(tuple(range(first, first + each)))
    return tuple(gpus_of_ranks)


def gpus_of_each(ranks: int, gpus: int, each: int | None) -> int:
    """Return how many GPUs each rank has: `each`, else an equal part. Raises as choose_gpus."""
    limits = (("ranks", ranks, MOST_RANKS), ("GPUs", gpus, MOST_GPUS))
    for noun, number, most in limits:
        if not 1 <= number <= most:
            raise InvalidRequestError(
                f"choose: {number} {noun} cannot be assigned; it takes 1 to {most}"
            )
    if each is None:
        each = max(1, gpus // ranks)
    if each > 1 and each * ranks > gpus:
        raise UnsatisfiableError(
            f"gpus_per_rank={each}: {ranks} ranks need {each * ranks} GPUs, and {gpus} are visible"
        )
    return each


def _distances(
    topology: Topology, cpus_of_ranks: Sequence[CpuSet], gpus: Sequence[Gpu]
) -> list[list[int]]:
    """Return each rank's distance to each GPU, as whole numbers: all are scaled by one factor."""
    factor = lcm(*(len(cpus) for cpus in cpus_of_ranks))
    distances = []
    for cpus in cpus_of_ranks:
        cpus_on = {}  # node → how many of the rank's CPUs are on it
        for node in topology.nodes_with_cpus:
            cpus_on[node] = len(cpus & topology.cpus_of_node(node))
        distance_to = {}
        for home in {gpu.numa_node for gpu in gpus}:
            total = 0
            for node, number in cpus_on.items():
                if home in {node, None}:
                    total += number * OWN_DISTANCE
                elif number:
                    total += number * int(min(topology.distance(home, node), FARTHEST))
            distance_to[home] = total * (factor // len(cpus))
        distances.append([distance_to[gpu.numa_node] for gpu in gpus])
    return distances


def _assign(costs: Sequence[Sequence[int]], *, most: int, crowding: int) -> list[int]:
    """Return the GPU of each row at the least cost, by successive shortest paths.

    A GPU has at most `most` rows, and each costs `crowding` more than the one before. A path adds a
    row to a GPU, moves another row from there to the next GPU, and so on. Dijkstra's algorithm
    finds the paths: with earlier paths' costs as potentials, no reduced cost is negative.
    """
    gpus = range(len(costs[0]))
    chosen: list[int] = []
    rows_on: list[list[int]] = [[] for _ in gpus]
    moves: list[list[tuple[int, int]]] = [[] for _ in gpus]  # for each GPU: cost, row
    potential = [0] * len(gpus)
    for row, of_row in enumerate(costs):
        reached = list(of_row)
        reduced = [reached[gpu] - potential[gpu] for gpu in gpus]
        before: list[int | None] = [None] * len(gpus)
        waiting = set(gpus)
        while waiting:
            gpu = min(waiting, key=reduced.__getitem__)
            waiting.remove(gpu)
            if moves[gpu]:
                for other in waiting:
                    cost = reached[gpu] + moves[gpu][other][0]
                    if cost < reached[other]:
                        reached[other] = cost
                        reduced[other] = cost - potential[other]
                        before[other] = gpu
        potential = reached
        costs_of_ends = []
        for gpu in gpus:
            if len(rows_on[gpu]) < most:
                cost = reached[gpu] + crowding * len(rows_on[gpu])
                costs_of_ends.append((cost, gpu))
        _, end = min(costs_of_ends)
        changed = [end]
        while (start := before[changed[-1]]) is not None:
            mover = moves[start][changed[-1]][1]
            rows_on[start].remove(mover)
            rows_on[changed[-1]].append(mover)
            chosen[mover] = changed[-1]
            changed.append(start)
        rows_on[changed[-1]].append(row)
        chosen.append(changed[-1])
        for gpu in changed:
            moves[gpu] = _cheapest_moves(costs, rows_on[gpu], gpu)
    return chosen


def _cheapest_moves(
    costs: Sequence[Sequence[int]], rows: Sequence[int], gpu: int
) -> list[tuple[int, int]]:
    """Return the least cost of a move from a GPU to each GPU, and the row that would move."""
    moves = []
    for other in range(len(costs[0])):
        costs_of_rows = [(costs[row][other] - costs[row][gpu], row) for row in rows]
        moves.append(min(costs_of_rows))
    return moves
