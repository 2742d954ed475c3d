"""`affinityd plan --choose-gpu`: the table of all ranks, for the author of a job script."""

import json

import pytest

from affinityd.cli import main
from affinityd.topology.model import Node
from tests.support.asking import answer_to
from tests.support.machines.facts import machine

PLAN = ("plan", "--machine", "mi250x", "--choose-gpu")


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        ("--cpus-of 1-7 --cpus-of 49-55 --gpus-per-rank 1", [(0, 4), (1, 0)]),
        ("--cpus-of 0-15 --cpus-of 48-63 --gpus-per-rank 2", [(0, 4), (0, 5), (1, 0), (1, 1)]),
        ("--cpus-of 0-63 --cpus-of 0-63 --gpus-per-rank 1", [(0, 0), (1, 1)]),
        ("--cpus-of 0-7 --visible ROCR_VISIBLE_DEVICES=1,0", [(0, 0), (0, 1)]),
    ],
)
def test_each_rank_has_its_gpus_and_keeps_its_cpus(
    capsys: pytest.CaptureFixture[str], words: str, gpus: list[tuple[int, int]]
) -> None:
    assert main([*PLAN, *words.split(), "--json"]) == 0
    ranks = json.loads(capsys.readouterr().out)["ranks"]
    assert [(rank["rank"], rank["gpu"]["index"]) for rank in ranks] == gpus
    given = words.split()[1::2]
    assert [rank["cpulist"] for rank in ranks] == [given[rank["rank"]] for rank in ranks]
    assert main([*PLAN, *words.split()]) == 0
    assert capsys.readouterr().out.count("\n") == 2 + len(gpus)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "--choose-gpu and --cpus-of go together: give --cpus-of LIST once for each rank"),
        (
            "--cpus-of 0-7,x",
            "--cpus-of: 'x' is not a CPU number or range; write it like",
        ),
        ("--cpus-of 120-128", "--cpus-of: '120-128' is not within online CPUs 0-127"),
        ("--cpus-of 9999", "--cpus-of: CPU number in '9999' is too large; the largest is 8191"),
        (
            "--cpus-of 0 --gpus-per-rank 0",
            "gpus_per_rank: '0' is not a whole number from 1 to",
        ),
        (
            "--cpus-of 0 --gpus-per-rank 9",
            "gpus_per_rank=9: 1 ranks need 9 GPUs, and 8",
        ),
        ("--cpus-of 0 " * 257, "choose: 257 ranks cannot be assigned; it takes 1 to 256"),
        ("--cpus-of 0 --ranks 2", "--cpus-of names all ranks and CPUs; give no --ranks"),
        ("--cpus-of 0 --cpuset 0-7", "--cpus-of names all ranks and CPUs; give no --ranks"),
        ("--cpus-of 0 --gpus 1", "choose=gpu takes the visible GPUs, and gpus names some"),
    ],
)
def test_an_impossible_choice_is_an_error_of_one_line(
    capsys: pytest.CaptureFixture[str], words: str, line: str
) -> None:
    assert main([*PLAN, *words.split()]) in {1, 2}
    assert line in capsys.readouterr().err


def test_the_api_gives_the_same_answer_as_the_command() -> None:
    query = b"choose=gpu&ranks=2&rank=1&cpuset=0-63&gpus_per_rank=1&format=shell"
    reply, text = answer_to(Node(machine("mi250x")), query, form="shell")
    assert [rank.gpu.index for rank in reply.ranks] == [1]
    assert "ROCR_VISIBLE_DEVICES=1\n" in text
    assert "AFFINITYD_CPULIST=48-63\n" in text
