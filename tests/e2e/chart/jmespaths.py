"""Evaluates JMESPath expressions, as Kyverno's variables are.

Run by the environment `tools.JMESPATH`: reads a JSON list of [expression, document], prints
each result.
"""

from __future__ import annotations

import importlib
import json
import sys


def main() -> None:
    """Evaluate what stdin has."""
    jmespath = importlib.import_module("jmespath")
    for expression, document in json.load(sys.stdin):
        print(json.dumps(jmespath.search(expression, document)))  # noqa: T201


if __name__ == "__main__":
    main()
