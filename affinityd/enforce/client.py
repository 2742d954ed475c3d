"""What a daemon answers at /enforce, asked for and read: fields are the document's, by name."""

from __future__ import annotations

import json
from dataclasses import dataclass

from affinityd.audit.model import GpuKey
from affinityd.client import http as client
from affinityd.enforce.model import CAUSES, LEFT, REASONS
from affinityd.errors import NotEnforcedError
from affinityd.json_reader import JsonValue

MAX_ANSWER = 64 * 1024 * 1024  #: bytes; a process takes about 700

#: What becomes of a GPU: none of its processes runs far away; all that do are mended by a pin; one
#: needs another allocation; one is left for another reason; nobody knows. As
#: `affinityd.enforce.document` has them, whose policy takes a reader of TOML.
OK, BY_PIN, NEEDS_ALLOCATION, IS_LEFT, UNKNOWN = "ok", "pin", "allocation", "left", "unknown"


@dataclass(frozen=True)
class Process:
    """What is to become of a process."""

    pid: int
    name: str
    gpus: tuple[GpuKey, ...]  #: that of most memory first
    verdict: str
    cause: str | None
    reason: str | None
    why: str | None
    masks: str | None  #: cpulist: where its threads may run now
    cpulist: str | None  #: where they are to run
    mode: str | None
    rule: int | None
    drifted: int  #: threads
    on_purpose: int  #: threads


@dataclass(frozen=True)
class Job:
    """A job, or with a scheduler of None what is in none."""

    scheduler: str | None
    id: str | None
    pod: str | None  #: NAMESPACE/NAME, where they are known
    processes: tuple[Process, ...]


@dataclass(frozen=True)
class Gpu:
    """What becomes of a GPU."""

    key: GpuKey
    pci_bus_id: str
    fate: str


@dataclass(frozen=True)
class Policy:
    """Which policy counts."""

    file: str | None
    read: str | None
    rules: int
    error: str | None


@dataclass(frozen=True)
class EnforceReport:
    """The document."""

    node: str
    sees: str
    enforce: str
    does: str
    hindrance: str | None
    policy: Policy
    notices: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    fits: int  #: processes, everybody's
    drifted: int
    left: int
    unreached: int
    jobs: tuple[Job, ...]  #: none where the caller sees counts alone

    @property
    def is_amiss(self) -> bool:
        """Whether a process does not run where it is to, or may run far from its GPU."""
        return (
            self.drifted > 0
            or any(gpu.fate in {BY_PIN, NEEDS_ALLOCATION, IS_LEFT} for gpu in self.gpus)
            or any(it.verdict == LEFT and it.cause for job in self.jobs for it in job.processes)
        )

    @property
    def is_blind(self) -> bool:
        """Whether nothing is known of any GPU."""
        return all(gpu.fate == UNKNOWN for gpu in self.gpus)


def ask(address: str, deadline: float) -> str:
    """Return the document of a daemon; `deadline` is of time.monotonic.

    Raises DaemonError as `client.fetch` does, NotEnforcedError where it does not enforce.
    """
    return client.fetch(address, "/enforce", deadline, refusals=[NotEnforcedError], most=MAX_ANSWER)


def read(text: str) -> EnforceReport:
    """Read a document. Raises ValueError, one line: what is no such document, and where in it."""
    try:
        it = JsonValue(json.loads(text), "enforce")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    summary, processes = it["summary"], it["summary"]["processes"]
    return EnforceReport(
        node=it["node"].text(),
        sees=(sees := it["sees"].text()),
        enforce=it["enforce"].text(),
        does=it["does"].text(),
        hindrance=it["hindrance"].maybe(JsonValue.text),
        policy=_policy(it["policy"]),
        notices=it["notices"].each(JsonValue.text),
        gpus=summary["gpus"].each(_gpu),
        fits=processes["fits"].number(),
        drifted=sum(processes["drifted"][cause].number() for cause in CAUSES),
        left=sum(processes["left"][reason].number() for reason in REASONS),
        unreached=it["unreached"].number(),
        jobs=() if sees == "counts" else it["jobs"].each(_job),
    )


def _policy(it: JsonValue) -> Policy:
    return Policy(
        file=it["file"].maybe(JsonValue.text),
        read=it["read"].maybe(JsonValue.text),
        rules=it["rules"].number(),
        error=it["error"].maybe(JsonValue.text),
    )


def _gpu(it: JsonValue) -> Gpu:
    return Gpu(
        key=_key(it),
        pci_bus_id=it["pci_bus_id"].text(),
        fate=it["fate"].text(),
    )


def _job(it: JsonValue) -> Job:
    return Job(
        scheduler=it["scheduler"].maybe(JsonValue.text),
        id=it["id"].maybe(JsonValue.text),
        pod=it["pod"].maybe(JsonValue.text),
        processes=it["processes"].each(_process),
    )


def _process(it: JsonValue) -> Process:
    return Process(
        pid=it["pid"].number(),
        name=it["name"].text(),
        gpus=(_key(it), *it["gpus_beside"].each(_key)),
        verdict=it["verdict"].text(),
        cause=it["cause"].maybe(JsonValue.text),
        reason=it["reason"].maybe(JsonValue.text),
        why=it["why"].maybe(JsonValue.text),
        masks=it["masks"].maybe(JsonValue.text),
        cpulist=it["cpulist"].maybe(JsonValue.text),
        mode=it["mode"].maybe(JsonValue.text),
        rule=it["rule"].maybe(JsonValue.number),
        drifted=it["threads_drifted"].number(),
        on_purpose=it["threads_on_purpose"].number(),
    )


def _key(it: JsonValue) -> GpuKey:
    return it["vendor"].text(), it["gpu"].number()
