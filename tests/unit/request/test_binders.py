"""The table of other binders: its rows, what they are recognized by, and the page of them.

`python -m tests.unit.request.test_binders` writes the page's table again.
"""

from __future__ import annotations

import re
from itertools import chain

import pytest

from affinityd.request import environment
from affinityd.request.binders import (
    BINDERS,
    Binder,
    earlier,
    in_memory,
    later,
    own_variables,
)
from tests.support.paths import REPOSITORY
from tests.support.tables import rows, words

PAGE = REPOSITORY / "docs/binders.md"
#: Options and variables.
CODE = r"((?<!\S)--?\w[\w-]*(?:=\w+|(?= '\{) '[^']*')?|\b[A-Z][A-Za-z]*_\w+(?:=\w+)?)"
HEAD = ("binder", "recognized by", "what it does", "ends it", "source")


def page_rows() -> list[str]:
    rows = [HEAD, ("---",) * len(HEAD)]
    for it in BINDERS:
        marks = (*it.programs, *it.options, *it.on, *it.before, *it.libraries, *it.threads)
        words = ", ".join(f"`{word.strip()}`" for word in dict.fromkeys(marks))
        does = f"{it.effect}: {it.does}"
        texts = (re.sub(CODE, r"`\1`", text) for text in (does, it.switch, it.source))
        rows.append((f"**{it.name}**", words, *texts))
    return [f"| {' | '.join(cells)} |" for cells in rows]


def test_the_page_has_the_rows() -> None:
    """Run this file as a module after a change of a row."""
    assert [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][
        -len(page_rows()) :
    ] == page_rows()


@pytest.mark.parametrize("binder", BINDERS, ids=lambda it: it.name)
def test_a_row_says_when_it_was_tried_or_read(binder: Binder) -> None:
    assert re.fullmatch(r".+; (tried|read) [^,]*\d[^,]*, 20\d\d-\d\d-\d\d", binder.source)
    assert binder.switch


def test_exec_knows_each_word_by_which_a_row_acts() -> None:
    known = chain.from_iterable((*it.programs, *it.on) for it in BINDERS)
    assert {*known} == environment.BINDERS


@pytest.mark.parametrize(
    ("command", "environ", "acting"),
    rows("""
none                   | python train.py                | |
a program's option     | numactl --cpunodebind=0 python | | numactl (numactl --cpunodebind)
not turned on          | /usr/bin/numactl -m 0 python   | |
in a shell's script    | bash -c 'taskset -c 1 python'  | | taskset (taskset)
turned off             | srun --cpu-bind=none x         | |
on by itself           | srun x                         | | Slurm (srun)
off by a variable      | srun x                         | SLURM_CPU_BIND=none |
Open MPI               | mpirun -np 2 x                 | | Open MPI (mpirun)
Open MPI, off          | mpirun --bind-to none x        | |
or by its variable     | mpirun x                       | OMPI_MCA_hwloc_base_binding_policy=none |
MPICH | mpiexec.hydra -bind-to core x | I_MPI_PIN=off | MPICH (mpiexec.hydra -bind-to)
Intel MPI              | mpiexec.hydra x                | | Intel MPI (mpiexec.hydra)
torchrun               | torchrun --numa-binding=node t | | torchrun (torchrun --numa-binding)
as a module            | python -m torch.distributed.run --numa_binding node t | | \
torchrun (torch.distributed.run --numa_binding)
torchrun, off          | torchrun t.py                  | |
accelerate             | accelerate launch --enable_cpu_affinity t.py | | \
accelerate (accelerate --enable_cpu_affinity)
by its variable        | python t.py | ACCELERATE_CPU_AFFINITY=True | \
accelerate (ACCELERATE_CPU_AFFINITY=True)
DeepSpeed | deepspeed --bind_cores_to_rank t | | DeepSpeed (deepspeed --bind_cores_to_rank)
vLLM                   | vllm serve m --numa-bind       | | vLLM (vllm --numa-bind)
on Ascend | vllm serve m | ASCEND_RT_VISIBLE_DEVICES=0 | vllm-ascend (vllm)
off, in JSON           | vllm serve m --additional-config '{"enable_cpu_binding": false}' | \
ASCEND_RT_VISIBLE_DEVICES=0 |
SGLang                 | python -m sglang.launch_server --numa-node 0 | | \
SGLang (sglang.launch_server --numa-node)
TensorRT-LLM           | trtllm-serve m                 | | TensorRT-LLM (trtllm-serve)
TensorRT-LLM, off      | trtllm-serve m                 | TLLM_NUMA_AWARE_WORKER_AFFINITY=0 |
on by its variable     | python t.py                    | TLLM_NUMA_AWARE_WORKER_AFFINITY=1 | \
TensorRT-LLM (TLLM_NUMA_AWARE_WORKER_AFFINITY=1)
NeMo RL, off           | x | NRL_GPU_CPU_AFFINITY_FILE=/t NRL_DISABLE_NUMA_BINDING=1 |
HIP, off               | x | AMD_CPU_AFFINITY=0 |
NCCL                   | x | NCCL_IGNORE_CPU_AFFINITY=1 | NCCL (NCCL_IGNORE_CPU_AFFINITY=1)
OpenMP                 | x | OMP_PROC_BIND=close | OpenMP (OMP_PROC_BIND=close)
OpenMP's places        | x | OMP_PLACES=cores | OpenMP (OMP_PLACES=cores)
OpenMP, off            | x | OMP_PLACES=cores OMP_PROC_BIND=FALSE |
GNU's OpenMP, off      | x | GOMP_CPU_AFFINITY=0 OMP_PROC_BIND=false |
Intel's OpenMP, off    | x | KMP_AFFINITY=none |
Intel's | x | KMP_AFFINITY=fine,compact,1,0 | Intel OpenMP (KMP_AFFINITY=fine,compact,1,0)
by their order         | mpirun numactl -N 0 python | OMP_PROC_BIND=true | \
Open MPI (mpirun); numactl (numactl -N); OpenMP (OMP_PROC_BIND=true)
and the other way      | numactl -N 0 mpirun python | | numactl (numactl -N); Open MPI (mpirun)
"""),
)
def test_which_binders_act_on_a_command(command: str, environ: str, acting: str) -> None:
    assert "; ".join(map(str, later(words(environ), [command]))) == acting


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, []),
        ({"SLURM_CPU_BIND_TYPE": "mask_cpu:"}, ["Slurm"]),
        ({"SLURM_CPU_BIND_TYPE": "none"}, []),
        ({"OMPI_MCA_orte_bound_at_launch": "1"}, ["Open MPI"]),
        ({"HYDRA_USER_PROVIDED_BINDING": "1"}, ["MPICH"]),
        ({"I_MPI_PIN_MAPPING": "1:0 0"}, ["Intel MPI"]),
        ({"I_MPI_PIN_MAPPING": "1:0 0", "I_MPI_PIN": "0"}, []),
    ],
)
def test_which_launcher_has_bound_a_process(environ: dict[str, str], names: list[str]) -> None:
    assert [it.binder.name for it in earlier(environ)] == names


@pytest.mark.parametrize(
    ("environ", "libraries", "words"),
    [
        ({}, ["libgomp.so.1", "libtensorrt_llm.so"], ["libtensorrt_llm.so"]),
        ({"TLLM_NUMA_AWARE_WORKER_AFFINITY": "0"}, ["libtensorrt_llm.so"], []),
        ({"OMP_PLACES": "cores"}, ["libiomp5.so"], ["OMP_PLACES=cores"]),
        ({"OMP_PLACES": "cores"}, ["libc.so.6"], []),
    ],
)
def test_which_binders_are_in_memory(
    environ: dict[str, str], libraries: list[str], words: list[str]
) -> None:
    assert [it.word for it in in_memory(environ, libraries)] == words


def test_what_own_sets_ends_every_fight_that_a_variable_can_end() -> None:
    """And it sets nothing of a binder that is not there, which the variable could disturb."""
    environ = {"OMP_PLACES": "cores", "KMP_AFFINITY": "compact", "GOMP_CPU_AFFINITY": "0"}
    command = ["mpirun", "trtllm-serve", "m"]
    after = {**environ, **own_variables(later(environ, command))}
    assert not [str(it) for it in later(after, command)]
    hidden = {"TLLM_NUMA_AWARE_WORKER_AFFINITY", "NRL_DISABLE_NUMA_BINDING"}
    assert own_variables([]).keys() == {*hidden, "UCCL_EP_DISABLE_CPU_AFFINITY"}


def test_the_task_prolog_has_the_same_variables() -> None:
    """It sees no command: those that a variable turns on, and those that are hidden."""
    script = (REPOSITORY / "slurm/task_prolog.sh").read_text()
    rows = {
        f"{name}:{own}={value}"
        for it in BINDERS
        if it.fights and not it.is_hidden
        for name in it.on
        for own, value in it.own.items()
    }
    assert {*re.findall(r"[A-Z_]+:[A-Z_]+=\w+", script)} == rows
    assert all(f" {name}={value}" in script for name, value in own_variables([]).items())


if __name__ == "__main__":
    above = PAGE.read_text().partition(f"| {HEAD[0]} | {HEAD[1]}")[0]
    PAGE.write_text("\n".join([above.rstrip(), "", *page_rows(), ""]))
