"""Tables of cases as text: one row a line, with bars between cells."""

import pytest
from _pytest.mark import ParameterSet

from tests.support.paths import DATA


def rows(table: str) -> list[ParameterSet]:
    """Return each row as a case of a test; the first cell is its name, the others its values."""
    lines = (line for line in table.splitlines() if line.strip())
    cells = ([cell.strip() for cell in line.split("|")] for line in lines)
    return [pytest.param(*values, id=name) for name, *values in cells]


def table(file: str, **texts: str) -> list[list[str]]:
    """Return the rows of a table of tests/data; `texts` replace their names in braces."""
    content = (DATA / file).read_text()
    for name, text in texts.items():
        content = content.replace(f"{{{name}}}", text)
    columns, *lines = (line.split("\t") for line in content.splitlines() if line[0] != "#")
    return [line + [""] * (len(columns) - len(line)) for line in lines]


def cases(file: str, **texts: str) -> list[ParameterSet]:
    """Return each row as a case of a test; the first cell is its name, the others its values."""
    return [pytest.param(*values, id=name) for name, *values in table(file, **texts)]


def words(text: str) -> dict[str, str]:
    """Return `a=1 b=2` as a mapping; if a name is repeated, its last word counts."""
    return dict(word.split("=", 1) for word in text.split())
