"""The checks of each block: its syntax, and whether there is what its commands name."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from importlib import import_module

import yaml

from affinityd.cli import COMMANDS
from affinityd.cli.commands import exec as exec_options
from affinityd.cli.parser import Parser
from affinityd.config import settings
from affinityd.errors import AffinityError, InvalidRequestError
from docs.check.blocks import Block
from docs.check.pages import ROOT

#: Options whose value is `affinityd` itself: a namespace.
NAMESPACE = {"-n", "--namespace"}
OURS = re.compile(r"(?:scripts|deploy|examples|slurm|docs)/[\w.*/-]+")
SET = re.compile(r"--set(?:-file)? ([\w.]+)=")
INLINE = re.compile(r"`affinityd ([a-z][^`:…]*)`")
UNKNOWN = re.compile("unrecognized|invalid choice|no such command|is not an option")
SETTING = re.compile(r"^(\w+)=(.*)$", re.MULTILINE)
SCHEMA = json.loads((ROOT / "deploy/helm/affinityd/values.schema.json").read_text())
SUITES = re.findall(r"^([a-z]+) ", (ROOT / "tests/suites").read_text(), re.MULTILINE)


def faults(block: Block) -> Iterator[str]:
    """Yield what is wrong in a block."""
    yield from _syntax(block)
    for words in block.commands:
        yield from _missing_paths(words)
        ours = _affinityd(words)
        if ours is not None and (refusal := _refusal(ours)):
            yield refusal


def unknown_options(text: str) -> Iterator[str]:
    """Yield the refusals of commands in sentences, which need not be complete."""
    for command in INLINE.findall(text):
        refusal = _refusal(command.split())
        if refusal and UNKNOWN.search(refusal):
            yield refusal


def unknown_values(text: str) -> Iterator[str]:
    """Yield what a page sets of the chart that its schema does not know."""
    for key in SET.findall(text):
        schema = SCHEMA
        for name in key.split("."):
            _, _, shared = schema.get("$ref", "").rpartition("/")
            schema = SCHEMA["definitions"].get(shared, schema)
            schema = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
            if not schema:
                yield f"--set {key}: values.schema.json has no such value"
                break


def _syntax(block: Block) -> Iterator[str]:
    try:
        match block.kind:
            case "sh":
                subprocess.run(["/bin/sh", "-n"], input=block.text, check=True, text=True)
            case "yaml":
                yaml.safe_load(block.text)
            case "python":
                ast.parse(block.text)
            case "ini":
                settings.load({}, dict(SETTING.findall(block.text)))
    except (subprocess.CalledProcessError, yaml.YAMLError, SyntaxError, AffinityError) as error:
        yield f"{block.kind}: {error}"


def _missing_paths(words: Sequence[str]) -> Iterator[str]:
    for word in words:
        if OURS.fullmatch(word) and not [*ROOT.glob(word)]:
            yield f"{word} does not exist"
    match words:
        case ["scripts/test", name, *_] if name not in {*SUITES, "all", "nightly"}:
            yield f"scripts/test {name}: there is no such suite"


def _affinityd(words: Sequence[str]) -> Sequence[str] | None:
    """Return the words after `affinityd`, where a command runs it."""
    for place, word in enumerate(words):
        after, before = words[place + 1 :], words[place - 1] if place else None
        if word == "affinityd" and (
            not place or (after[:1] and after[0] in COMMANDS and before not in NAMESPACE)
        ):
            return after
    return None


def _refusal(words: Sequence[str]) -> str | None:
    """Return how affinityd refuses a command line; None: it takes it."""
    name, *rest = ["1" if word == "PID" else word for word in words] or [""]
    if name not in COMMANDS:
        return f"affinityd {name}: there is no such command"
    said = io.StringIO()
    try:
        if name == "exec":
            exec_options.parse(exec_options.split(rest)[0])
            return None
        parser = Parser(prog=f"affinityd {name}")
        import_module(f"affinityd.cli.commands.{name}").add_arguments(parser)
        with redirect_stderr(said):
            parser.parse_args(rest)
    except (SystemExit, InvalidRequestError) as error:
        return said.getvalue().strip() or f"affinityd exec: {error}"
    return None
