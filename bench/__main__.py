"""Runs the comparisons, prints them, and writes bench/results.md.

scripts/bench           runs all comparisons
scripts/bench PART      runs one comparison, and only prints it
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from bench import memory, plans, process, prolog, scans, start
from bench.ratio import Ratio

#: The comparisons in the order in which they run: quick ones first.
PARTS: dict[str, Callable[[], tuple[Ratio, ...]]] = {
    "start": start.measure,
    "plans": plans.measure,
    "scans": scans.measure,
    "memory": memory.measure,
    "process": process.measure,
    "prolog": prolog.measure,
}

HEAD = """# On the clock

What affinityd takes, divided by what a peer takes in the same run: the median of all rounds, and
the first and third quartile. `scripts/bench` measures it again.

| affinityd | peer | median | quartiles | goal | |
| --- | --- | --- | --- | --- | --- |
"""


def main() -> None:
    """Measure; a part that cannot run here is left out, with its reason."""
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=PARTS)
    chosen = parser.parse_args().part
    rows, left_out = list[str](), list[str]()
    began = time.monotonic()
    for name in [chosen] if chosen else PARTS:
        print(f"{name}:", flush=True)
        try:
            ratios = PARTS[name]()
        except (OSError, RuntimeError, AssertionError, subprocess.SubprocessError) as error:
            left_out.append(f"{name}: {(str(error) or repr(error)).splitlines()[0]}")
            print("left out:", left_out[-1], flush=True)
            continue
        print(*ratios, sep="\n", flush=True)
        rows += map(str, ratios)
    if chosen is None:
        lines = [*rows, *_facts(left_out, time.monotonic() - began)]
        Path(__file__).with_name("results.md").write_text(HEAD + "\n".join(lines) + "\n")


def _facts(left_out: list[str], seconds: float) -> Iterator[str]:
    cpu = next(
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    packages = ("fastapi", "uvicorn", "uvloop", "httptools", "pydantic", "psutil")
    facts = (
        f"{os.cpu_count()} CPUs of {cpu}",
        f"Linux {platform.release()}",
        f"Python {platform.python_version()}",
        *(f"{it} {version(it)}" for it in packages),
    )
    yield from (
        "",
        f"{time.strftime('%Y-%m-%d')}, in {seconds / 60:.0f} minutes: {', '.join(facts)}.",
    )
    yield from ("", "Left out here:", "") if left_out else ()
    yield from (f"- {it}" for it in left_out)


if __name__ == "__main__":
    main()
