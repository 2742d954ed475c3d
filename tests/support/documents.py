"""Documents for tests: as JSON has them, and read by their description."""

import json
from typing import Any, TypeVar

from affinityd.json_codec import dumps, loads

T = TypeVar("T")


def in_json(document: object) -> Any:  # noqa: ANN401 - of any shape
    return json.loads(dumps(document))


def exactly(kind: type[T], body: str | bytes) -> T:
    """Return the document that JSON is; it has nothing that its description does not."""
    document = loads(kind, body, "it")
    assert in_json(document) == json.loads(body)
    return document
