"""Kubernetes' own schemas of its objects."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from kubernetes_validate import utils

from tests.e2e.chart.rendering import Object

#: What the chart and the examples are for.
OLDEST, NEWEST = "1.28", utils.major_minor(utils.latest_version())

# It would read the same megabytes anew for each object.
utils.schema_contents = cache(utils.schema_contents)


def validate(objects: Iterable[Object], *versions: str) -> None:
    """Let the schemas of these releases judge objects, none of which may have an unknown field."""
    for it in objects:
        for version in versions:
            assert utils.validate(it, version, strict=True) == version
