"""Judges custom resources of Prometheus Operator by its CRDs, as the API server would.

Run by the environment `tools.CRDS`: reads a JSON list of objects, prints the worst fault of each.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

MODELS = "cloudcoil.models.prometheus_operator.v1"


def closed(schema: Any) -> Any:  # noqa: ANN401 - a part of a schema is anything
    """Return a schema that refuses unknown fields wherever it knows some."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(part) for name, part in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


def main() -> None:
    """Judge what stdin has."""
    models, jsonschema = importlib.import_module(MODELS), importlib.import_module("jsonschema")
    for document in json.load(sys.stdin):
        model = getattr(models, document["kind"])
        judge = jsonschema.Draft202012Validator(closed(model.model_json_schema(by_alias=True)))
        if fault := jsonschema.exceptions.best_match(judge.iter_errors(document)):
            print(f"{document['kind']}: {fault.json_path}: {fault.message}")  # noqa: T201


if __name__ == "__main__":
    main()
