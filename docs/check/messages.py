"""All messages in one list, each with its place.

A message is a text of three words or more that a program may print: a string of the package that is
no docstring, a quoted text of the shell scripts, a text of an alert or of a dashboard's panel, a
`fail` of the chart.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml

from docs.check.pages import ROOT

LEAST_WORDS = 3
SCRIPTS = ("affinityd/kubernetes/files/*.sh", "slurm/*.sh")
CHART = ROOT / "deploy/helm/affinityd"

#: The place of a message, and its text; {expression} for values.
Message = tuple[str, str]


def docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module, of its classes and functions."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.Module(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.ClassDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.FunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
                | ast.AsyncFunctionDef(body=[ast.Expr(ast.Constant(str()) as text), *_])
            ):
                yield text


def _text(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(map(_text, parts))
        case ast.FormattedValue(value=value):
            return f"{{{ast.unparse(value)}}}"
    return ""


def of_module(path: Path) -> Iterator[Message]:
    """Yield the messages of a module of the package."""
    tree = ast.parse(path.read_text())
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    left_out = parts | {id(text) for text in docstrings(tree)}
    for node in ast.walk(tree):
        if id(node) not in left_out and len((text := _text(node)).split()) >= LEAST_WORDS:
            yield f"{path.relative_to(ROOT)}:{node.lineno}", text  # type: ignore[attr-defined]


def of_script(path: Path) -> Iterator[Message]:
    """Yield the texts in double quotes of a shell script's lines, without its comments."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for text in re.findall(r'"([^"]+)"', re.sub(r"(^|\s)#.*", "", line)):
            if len(text.split()) >= LEAST_WORDS:
                yield f"{path.relative_to(ROOT)}:{number}", text


def of_rules(path: Path) -> Iterator[Message]:
    """Yield the summaries and descriptions of alerts."""
    for group in yaml.safe_load(path.read_text())["groups"]:
        for rule in group["rules"]:
            for kind, text in rule.get("annotations", {}).items():
                if kind in {"summary", "description"}:
                    yield f"{path.relative_to(ROOT)}: {rule['alert']}", text


def of_chart(path: Path) -> Iterator[Message]:
    """Yield the errors by which a template refuses values, and what `helm install` prints."""
    if path.name == "NOTES.txt":
        yield f"{path.relative_to(ROOT)}", path.read_text()
    for text in re.findall(r'fail \(?(?:printf )?"([^"]+)"', path.read_text()):
        yield f"{path.relative_to(ROOT)}", text


def of_dashboard(path: Path) -> Iterator[Message]:
    """Yield the titles and texts of a dashboard's panels."""
    for panel in json.loads(path.read_text())["panels"]:
        text = panel.get("description") or panel.get("options", {}).get("content", "")
        if panel["type"] != "row":
            yield f"{path.relative_to(ROOT)}", f"{panel['title']}: {text}"


def messages() -> Iterator[Message]:
    """Yield all messages."""
    for path in sorted((ROOT / "affinityd").rglob("*.py")):
        yield from of_module(path)
    for pattern in SCRIPTS:
        for path in sorted(ROOT.glob(pattern)):
            yield from of_script(path)
    for path in sorted(CHART.glob("rules/*.yaml")):
        yield from of_rules(path)
    for path in sorted(CHART.glob("dashboards/*.json")):
        yield from of_dashboard(path)
    for path in sorted(CHART.glob("templates/*")):
        if path.is_file():
            yield from of_chart(path)
