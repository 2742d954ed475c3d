"""Objects of Prometheus Operator and Kyverno, judged by their CRDs, as the API server would."""

import json
import subprocess
from typing import Any

import jsonschema

from tests.e2e.chart import tools
from tests.e2e.chart.rendering import CHART, OPTIONS, loaded, objects

#: CRDs of Prometheus Operator 0.80 and of Kyverno 1.13, as models that know their JSON schema.
MODELS = ("cloudcoil.models.prometheus_operator==0.80.1.0", "cloudcoil.models.kyverno==1.13.4.0")
PRINT = """
import json
import cloudcoil.models.kyverno.v1 as kyverno
import cloudcoil.models.prometheus_operator.v1 as operator
models = [operator.PodMonitor, operator.ServiceMonitor, operator.PrometheusRule]
models += [kyverno.ClusterPolicy]
print(json.dumps({it.__name__: it.model_json_schema(by_alias=True) for it in models}))
"""

KYVERNO = CHART.parents[1] / "examples" / "policies" / "kyverno.yaml"
CUSTOM = ("monitoring.coreos.com/v1", "kyverno.io/v1")
MADE = (resource for option in OPTIONS for resource in objects(option).values())
OURS = [
    resource
    for resource in (*MADE, *loaded(KYVERNO.read_text()))
    if resource["apiVersion"] in CUSTOM
]


def closed(schema: Any) -> Any:  # noqa: ANN401 - a part of a schema is anything
    """Return a schema that refuses unknown fields wherever it knows some."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(part) for name, part in schema.items()}
    return {**inner, "additionalProperties": False} if "properties" in schema else inner


def test_their_crds_know_every_field_of_ours() -> None:
    python = tools.python_with(*MODELS) / "python"
    schemas = closed(json.loads(subprocess.check_output([python, "-c", PRINT])))
    judges = {kind: jsonschema.Draft202012Validator(resource) for kind, resource in schemas.items()}
    assert {resource["kind"] for resource in OURS} == judges.keys()
    for resource in OURS:
        judges[resource["kind"]].validate(resource)
