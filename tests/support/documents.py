"""Writes documents as JSON for tests, and reads them as their dataclass."""

import json
from typing import Any, TypeVar

from affinityd.json_codec import dumps, loads

T = TypeVar("T")


def in_json(document: object) -> Any:  # noqa: ANN401 - of any shape
    return json.loads(dumps(document))


def exactly(kind: type[T], body: str | bytes) -> T:
    """Read a document from JSON, which must have no fields but the document's."""
    document = loads(kind, body, "it")
    assert in_json(document) == json.loads(body)
    return document
