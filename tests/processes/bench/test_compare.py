import os
from pathlib import Path

import pytest

from tests.support.child_python import said

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="chroot(2) takes root")

TOOL = """
import os, sys
from pathlib import Path
from bench.compare.own_code import in_tree
from tests.support.reports import asked

def prepare():
    def bind(rank):
        if rank == 2:
            raise RuntimeError(os.environ["CUDA_VISIBLE_DEVICES"])
        mine = Path("/sys/of-rank", str(rank))
        if mine.exists():
            os.sched_setaffinity(0, {*map(int, mine.read_text().split()), 99})
        else:
            assert len(os.sched_getaffinity(0)) == 4, "the mask is that of the rank before"
    return bind

print(in_tree(asked("two nodes", "0-3", sys.argv[2]), Path(sys.argv[1]), prepare))
"""


@pytest.mark.parametrize(
    ("gpus", "answer"),
    [
        ("3,2", "Answer(ranks=[frozenset({1, 2}), None], error=None)"),
        ("3,2,1", "Answer(ranks=(), error='RuntimeError: 3,2,1')"),
    ],
)
def test_a_tools_own_code_sees_the_machine_and_is_bound_as_the_kernel_would(
    tmp_path: Path, gpus: str, answer: str
) -> None:
    (tmp_path / "sys/of-rank").mkdir(parents=True)
    (tmp_path / "sys/of-rank/0").write_text("1 2 8")
    assert said(TOOL, str(tmp_path), gpus) == answer
