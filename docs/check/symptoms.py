"""The messages in the tables of symptoms: a program prints each of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from docs.check.messages import SCRIPTS, messages
from docs.check.pages import ROOT

TABLES = ("docs/slurm.md", "docs/kubernetes-troubles.md")
CHARTS_TEST = "deploy/helm/affinityd/templates/tests/plan.yaml"
#: Messages of the kernel, of container runtimes and of kubelet.
OTHERS = {
    *("Permission denied", "/affinity/run: no such file or directory"),
    "hostPath type check failed",
}

SYMPTOM = re.compile(r"^\| ([^|]*) \|", re.MULTILINE)
#: The values in a message, and the name of the program before it.
FILLED_IN = re.compile(r"…|^AFFINITYD_UNPINNED=|^affinityd run: ")


def unknown_symptoms() -> Iterator[str]:
    """Yield the parts of quoted messages that no program prints."""
    patterns = (*SCRIPTS, CHARTS_TEST)
    scripts = (path.read_text() for pattern in patterns for path in ROOT.glob(pattern))
    printed = " ".join((*scripts, *(text for _, text in messages())))
    for page in TABLES:
        for quoted in re.findall(
            r"`([^`]*)`", " ".join(SYMPTOM.findall((ROOT / page).read_text()))
        ):
            is_message = "…" in quoted or ": " in quoted
            parts = (part.strip(" =:;") for part in FILLED_IN.split(quoted) if is_message)
            for part in parts:
                if " " in part and part not in printed and part not in OTHERS:
                    yield f"{page}: no program prints {part!r}"
