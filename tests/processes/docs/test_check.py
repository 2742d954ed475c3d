"""docs/check notices a block that is wrong."""

from __future__ import annotations

import pytest

from docs.check import commands
from docs.check.blocks import Block
from docs.check.words import nameless, wrong_words

WRONG = [
    ("sh", "affinityd plna", "affinityd plna: there is no such command"),
    ("sh", "srun affinityd exec --verbos -- true", "did you mean --verbose?"),
    ("sh", "echo 1 && affinityd audit --wach  # again", "unrecognized arguments: --wach"),
    ("sh", "kubectl -n affinityd exec POD -- affinityd audit -x", "unrecognized arguments: -x"),
    ("console", "$ affinityd pin --tree\nall is well\n", "required: PID"),
    ("sh", "scripts/runs", "scripts/runs does not exist"),
    ("sh", "scripts/test slrum", "there is no such suite"),
    ("sh", "if true; then", "sh: "),
    ("yaml", "a: [", "yaml: "),
    ("python", "def f(:", "python: "),
    ("ini", "AFFINITYD_JOB_SERIES=many", "'many' is not a whole number"),
]


@pytest.mark.parametrize(("kind", "text", "said"), WRONG)
def test_a_wrong_block_is_a_fault(kind: str, text: str, said: str) -> None:
    (fault,) = commands.faults(Block("page.md", 1, kind, f"{text}\n"))
    assert said in fault


def test_a_right_block_is_none() -> None:
    text = (
        "pid=$(pgrep python)\naffinityd pin --tree PID >out  # affinityd plna\nscripts/test unit\n"
    )
    assert [*commands.faults(Block("page.md", 1, "sh", text))] == []


def test_options_and_values_in_sentences_are_looked_up() -> None:
    assert [*commands.unknown_options("as `affinityd audit --wach` says")]
    assert not [*commands.unknown_options("`affinityd pin` and `affinityd exec`")]
    assert [*commands.unknown_values("--set audit.enable=true")]
    assert not [*commands.unknown_values("--set metrics.podMonitor.labels.release=a")]


def test_words_are_american_and_sentences_name_their_subject() -> None:
    assert [*wrong_words("The behaviour of nobody is initialised by `whom`")] == [
        "'nobody': name the user or program",
        "'behaviour': American spelling",
        "'initialised': American spelling",
    ]
    assert [*nameless("Return what it is.")]
    assert not [*nameless("Return the mask.")]
