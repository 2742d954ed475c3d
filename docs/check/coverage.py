"""What the pages must have: a test of each block, messages that programs print, all fields.

Each block with a command is run by a test, or blocks.yaml has the reason why none runs it.
tests/processes/docs runs `console` blocks, and asks a daemon the questions of `sh` blocks. The
parser reads affinityd's own commands. blocks.yaml lists the tests of all others.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import yaml

from affinityd.audit.document import AuditDocument
from affinityd.enforce.document import EnforceDocument
from affinityd.request.document import PlanDocument, ProblemDocument
from affinityd.topology.document import TopologyAnswer
from docs.check.blocks import BLOCKS, Block, of_page
from docs.check.messages import SCRIPTS, messages
from docs.check.pages import PAGES, ROOT

TABLE = Path(__file__).with_name("blocks.yaml")
READ = {"affinityd", "curl", "export", "id", "mkdir"}  #: by the parser, or without effect
QUERIES = {"promql", "toml"}  #: no commands, and yet an answer is expected

Row = tuple[str, str, str]  #: test or reason, page, beginning or kind


def rows() -> Iterator[Row]:
    """Yield the table's rows."""
    for section in yaml.safe_load(TABLE.read_text()).values():
        for how, pages in section.items():
            yield from ((how, page, start) for page, starts in pages.items() for start in starts)


def how(block: Block) -> list[str]:
    """Return in which ways a block is run; more than one is a fault of the table."""
    if block.kind == "console":
        return ["compared"]
    listed = [row[0] for row in rows() if _is(row, block)]
    programs = {words[0] for words in block.commands}
    if programs and programs <= READ and not listed:
        return ["parsed"]
    return listed if listed or programs or block.kind in QUERIES else ["no command"]


def faults() -> Iterator[str]:
    """Yield blocks without a row or an end, rows without a block, tests that read no such page."""
    for block in BLOCKS:
        if len(ways := how(block)) != 1:
            yield f"{block}: {ways or 'no test runs it'}: it needs one row of {TABLE.name}"
    for page in PAGES:
        if page.read_text().count("```") != 2 * len([*of_page(page)]):
            yield f"{page.relative_to(ROOT)}: a block without its beginning or its end"
    for row in rows():
        if not any(_is(row, block) for block in BLOCKS):
            yield f"{TABLE.name}: {row}: there is no such block"
    for test, pages in yaml.safe_load(TABLE.read_text())["tests"].items():
        path = ROOT / test
        text = path.read_text() if path.exists() else ""
        for page in pages:
            if Path(page).stem.partition("-")[0] not in text:
                yield f"{TABLE.name}: {test} does not read {page}"


def _is(row: Row, block: Block) -> bool:
    _, page, start = row
    return page == block.page and (block.kind == start or block.text.startswith(start))


# The messages in the tables of symptoms: a program prints each of them.


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


# The fields of the documents that the API serves: a page names each of them.


DOCUMENTS = (PlanDocument, ProblemDocument, TopologyAnswer, AuditDocument, EnforceDocument)


def fields(kind: object) -> Iterator[str]:
    """Yield the names of a document's fields, and of the documents in it."""
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            yield field.name
            yield from fields(hints[field.name])
    for part in typing.get_args(kind):
        yield from fields(part)


def undocumented() -> Iterator[str]:
    """Yield the fields that no page names."""
    text = "\n".join(page.read_text() for page in PAGES)
    for document in DOCUMENTS:
        for name in dict.fromkeys(fields(document)):
            if not any(f"{mark}{name}{end}" in text for mark in '`."' for end in '`[."'):
                yield f"{document.__name__}: no page names its field {name}"
