"""Judges custom resources by their CRDs, as the API server would.

Run by the environment `tools.CRDS`: reads a JSON list of objects, prints the worst fault of each.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

#: apiVersion → the models that know its schemas.
MODELS = {
    "monitoring.coreos.com/v1": "cloudcoil.models.prometheus_operator.v1",
    "kyverno.io/v1": "cloudcoil.models.kyverno.v1",
}


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
    jsonschema = importlib.import_module("jsonschema")
    for document in json.load(sys.stdin):
        models = importlib.import_module(MODELS[document["apiVersion"]])
        model = getattr(models, document["kind"])
        judge = jsonschema.Draft202012Validator(closed(model.model_json_schema(by_alias=True)))
        if fault := jsonschema.exceptions.best_match(judge.iter_errors(document)):
            print(f"{document['kind']}: {fault.json_path}: {fault.message}")  # noqa: T201


if __name__ == "__main__":
    main()
