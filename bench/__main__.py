"""Runs every comparison, prints it, and writes bench/results.md.

scripts/bench
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from bench import discovery, planning, plans, process, prolog, scans, start
from bench.compare import fetch
from bench.ratio import Ratio

FOLDER = Path(__file__).parent

#: What is run, in this order: quick ones first.
PARTS: dict[str, Callable[[], tuple[Ratio, ...]]] = {
    "planning": planning.measure,
    "starts": start.measure,
    "discovery": discovery.measure,
    "plans": plans.measure,
    "scans": scans.measure,
    "the daemon as a process": process.measure,
    "Slurm's launches": prolog.measure,
}

HEAD = """# On the clock

What affinityd takes, by what a peer takes in the same run: the median of all rounds, and the first
and third quartile. `scripts/bench` measures it again.

| affinityd | peer | median | quartiles | goal | |
| --- | --- | --- | --- | --- | --- |
"""


def main() -> int:
    """Measure all; a part that cannot run here is left out, with its reason."""
    ratios, left_out = list[Ratio](), list[str]()
    began = time.monotonic()
    for name in PARTS:
        found, why = _measured(name)
        ratios += found
        if why is not None:
            left_out.append(f"{name}: {why}")
    lines = [*_rows(ratios), *_facts(left_out, time.monotonic() - began)]
    (FOLDER / "results.md").write_text(HEAD + "\n".join(lines) + "\n")
    return 0


def _measured(name: str) -> tuple[tuple[Ratio, ...], str | None]:
    """Return the ratios of a part, or why there are none here."""
    print(f"{name}:", flush=True)
    began = time.monotonic()
    try:
        found = PARTS[name]()
    except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
        why = (str(error) or repr(error)).splitlines()[0]
        print(f"left out: {why}", flush=True)
        return (), why
    print(*found, f"in {time.monotonic() - began:.0f} s", sep="\n", flush=True)
    return found, None


def _rows(ratios: list[Ratio]) -> Iterator[str]:
    for it in ratios:
        if it.lack is not None:
            yield f"| {it.measured} | {it.peer} | not measured | | {it.goal} | {it.lack} |"
            continue
        first, last = it.spread
        figures = f"{it.middle:.2f} | {first:.2f} to {last:.2f} | {it.goal}"
        yield f"| {it.measured} | {it.peer} | {figures} | {'' if it.is_met else 'missed'} |"


def _facts(left_out: list[str], seconds: float) -> Iterator[str]:
    cpu = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    packages = ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "psutil")
    lstopo = subprocess.run(
        [discovery.LSTOPO, "--version"], capture_output=True, text=True, check=False
    ).stdout.strip()
    facts = (
        f"{os.cpu_count()} CPUs of {cpu}",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{it} {version(it)}" for it in packages),
        lstopo,
        f"gpu_affinity {fetch.GPU_AFFINITY_COMMIT[:7]}",
    )
    yield from (
        "",
        f"{time.strftime('%Y-%m-%d')}, in {seconds / 60:.0f} minutes: {', '.join(facts)}.",
    )
    yield from ("", "Left out here:", "") if left_out else ()
    yield from (f"- {it}" for it in left_out)


if __name__ == "__main__":
    sys.exit(main())
