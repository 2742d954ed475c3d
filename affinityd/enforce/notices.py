"""What enforcement cannot see or do, for people: it would look as if there were nothing. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from affinityd.audit.model import GpuKey
from affinityd.vicinity import several

NO_ENVIRONMENTS = (
    "the environment of processes in jobs cannot be read: AFFINITYD=off is not seen there, nor "
    "what rules ask of partition, account and environment; that takes CAP_SYS_PTRACE and "
    "CAP_DAC_READ_SEARCH (affinityd.service.d/enforce.conf for systemd, enforce.readEnvironments "
    "in the chart)"
)
NOT_SEEN = "nothing is known of the processes of {gpus}: {why}"


def notices(unknown: Mapping[GpuKey, str], *, is_blind: bool, refusal: str | None) -> Iterator[str]:
    """Yield them.

    `unknown`: GPUs whose processes are not known → why; `is_blind`: an environment could not be
    read; `refusal`: why memory could not be moved.
    """
    if is_blind:
        yield NO_ENVIRONMENTS
    if refusal is not None:
        yield refusal
    alike: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for (vendor, index), why in sorted(unknown.items()):
        alike[vendor, why].append(index)
    for (vendor, why), indices in alike.items():
        yield NOT_SEEN.format(gpus=f"{vendor} {several('GPU', indices)}", why=why)
