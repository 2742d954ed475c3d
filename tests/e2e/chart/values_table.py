"""The chart's values as a table, as helm-docs makes it of values.yaml, for the chart's README.

`python -m tests.e2e.chart.values_table` writes it again. A description is the comment above a value
that begins with `# --`: https://github.com/norwoodj/helm-docs.
"""

import json
from collections.abc import Iterator, Sequence

import yaml

from tests.support.paths import REPOSITORY

CHART = REPOSITORY / "deploy" / "helm" / "affinityd"
README = CHART / "README.md"
BEGIN, END = "## Values\n\n", "\n## "  #: what stands before and after the table
MARK = "# -- "
TYPES = {
    str: "string",
    int: "int",
    bool: "bool",
    list: "list",
    dict: "object",
    type(None): "string",
}


def table() -> str:
    """Return the rows, by name, with their head."""
    text = (CHART / "values.yaml").read_text(encoding="utf-8")
    values = yaml.compose(text)
    assert values is not None
    rows = sorted(_rows(values, text.splitlines()))
    head = ("| Key | Type | Default | Description |", "| --- | --- | --- | --- |")
    return "\n".join((*head, *rows)) + "\n"


def _rows(node: yaml.Node, lines: Sequence[str], above: str = "") -> Iterator[str]:
    for key, value in node.value:
        name = f"{above}{key.value}"
        description = _description(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value and not description:
            yield from _rows(value, lines, f"{name}.")
            continue
        default = yaml.safe_load(yaml.serialize(value))
        cells = (name, TYPES[type(default)], f"`{json.dumps(default)}`", description)
        yield f"| {' | '.join(it.replace('|', chr(92) + '|') for it in cells)} |"


def _description(lines: Sequence[str], line: int) -> str:
    """Return the comment above a line, from its mark on; empty: it has none."""
    words: list[str] = []
    for above in reversed(lines[:line]):
        comment = above.strip()
        if not comment.startswith("# "):
            return ""
        words.insert(0, comment.removeprefix(MARK if comment.startswith(MARK) else "# "))
        if comment.startswith(MARK):
            return " ".join(words)
    return ""


def written(readme: str) -> str:
    """Return the README with the table of today."""
    before, rest = readme.split(BEGIN)
    after = rest[rest.index(END) :]
    return f"{before}{BEGIN}{table()}{after}"


if __name__ == "__main__":
    README.write_text(written(README.read_text(encoding="utf-8")), encoding="utf-8")
