"""The fields of the documents that the API serves: a page names each of them."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator

from affinityd.audit.document import AuditDocument
from affinityd.enforce.document import EnforceDocument
from affinityd.request.document import PlanDocument, ProblemDocument
from affinityd.topology.document import TopologyAnswer
from docs.check.pages import PAGES

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
