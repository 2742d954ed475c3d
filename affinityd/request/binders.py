"""Programs and libraries that bind processes, too: how each is recognized, and its switch. Pure.

docs/binders.md is this table; a test compares both. `affinityd exec` imports this only where its
command or environment has a word of `BINDERS` in `request/environment`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

#: The effects of binders on a mask. By the first two a pin is lost.
REPLACES, SPLITS = "replaces the mask", "divides the mask among its threads"
AGREES, THREADS, NOTHING = "stays within the mask", "moves only its own threads", "sets no mask"

ANY, NOT_NONE, TRUE = ".+", "(?!.*none).+", "1|true|yes|on"  #: patterns of values
OPENMP = ("libgomp", "libiomp5", "libomp")


@dataclass(frozen=True)
class Binder:
    """One binder. Variables' values are patterns of the whole value, in any case."""

    name: str
    effect: str
    does: str
    switch: str  #: that ends the fight; the variables in it are those of `exec --own`
    source: str  #: and whether it was `tried` or `read`, which version, and when
    programs: tuple[str, ...] = ()  #: names of programs or Python modules in a command
    options: tuple[str, ...] = ()  #: of these programs, one of which turns it on; (): it is on
    off_options: tuple[str, ...] = ()  #: that turn it off, with a blank before their value
    on: Mapping[str, str] = field(default_factory=dict)  #: variables that turn it on
    off: Mapping[str, str] = field(default_factory=dict)  #: that turn it off, besides its switch
    needs: str = ""  #: a variable without which it does not act
    before: Mapping[str, str] = field(default_factory=dict)  #: variables that its processes have
    libraries: tuple[str, ...] = ()  #: beginnings of the names of its files in memory
    threads: tuple[str, ...] = ()  #: beginnings of the names of its threads
    is_hidden: bool = False  #: it acts in a library that no word of a command may reveal

    @property
    def fights(self) -> bool:
        """Whether a pin is lost by it."""
        return self.effect in {REPLACES, SPLITS}

    @property
    def ends_it(self) -> str:
        """How to end the fight, as a clause of a message."""
        return f"to end that: {self.switch}"

    @cached_property
    def own(self) -> Mapping[str, str]:
        """The variables, with their values, by which it leaves the mask to affinityd."""
        return dict(re.findall(r"\b([A-Z][A-Za-z_]+)=(\w+)", self.switch))

    def is_off(self, environ: Mapping[str, str], words: Sequence[str] = ()) -> bool:
        """Whether a variable or an option of a command switches it off."""
        text = f" {' '.join(words)} "
        is_lacking = self.needs and self.needs not in environ
        is_said = any(f" {option} " in text for option in self.off_options)
        return is_lacking or is_said or _first({**self.own, **self.off}, environ) is not None


#: The rows, in the order of the page.
BINDERS = (
    Binder(
        "numactl",
        REPLACES,
        "-N takes the node's CPUs, in the mask or not; -C ends where the mask lacks a CPU",
        "start the command without -N and -C",
        "numactl(8); tried 2.0.16, 2026-11-26",
        programs=("numactl",),
        options=("-N", "-C", "--cpunodebind", "--physcpubind", "--cpubind"),
    ),
    Binder(
        "taskset",
        REPLACES,
        "sets the mask that it is given",
        "start the command without it",
        "taskset(1); tried 2.38.1, 2026-11-26",
        programs=("taskset",),
    ),
    Binder(
        "Slurm",
        REPLACES,
        "srun binds as --cpu-bind or CpuBind= says; in a part of a node with none, too",
        "srun --cpu-bind=none (SLURM_CPU_BIND=none)",
        "srun(1), SLURM_CPU_BIND; tried 26.05, 2026-11-26",
        programs=("srun",),
        off_options=("--cpu-bind none", "--cpu_bind none"),
        before={"SLURM_CPU_BIND_TYPE": NOT_NONE},
    ),
    Binder(
        "Open MPI",
        REPLACES,
        "binds each rank to a core, in order (4.x: above two to NUMA nodes), in the mask or not",
        "mpirun --bind-to none (OMPI_MCA_hwloc_base_binding_policy=none, from 5.0 on "
        "PRTE_MCA_hwloc_default_binding_policy=none)",
        "mpirun(1); tried 4.1.4 and 5.0.11, 2026-11-28",
        programs=("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi"),
        off_options=("--bind-to none", "-bind-to none"),
        before={"OMPI_MCA_orte_bound_at_launch": "1"},
    ),
    Binder(
        "MPICH",
        REPLACES,
        "hydra binds ranks only if told to, and then without regard to the mask",
        "mpiexec -bind-to none",
        "MPICH, Using the Hydra Process Manager; tried 4.0.2, 2026-11-26",
        programs=("mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra"),
        options=("-bind-to", "--bind-to"),
        off_options=("-bind-to none", "--bind-to none"),
        before={"HYDRA_USER_PROVIDED_BINDING": "1", "HYDRA_BINDING": NOT_NONE},
    ),
    Binder(
        "Intel MPI",
        AGREES,
        "divides the CPUs of the mask among its ranks",
        "I_MPI_PIN=0",
        "Intel MPI Library Developer Reference, I_MPI_PIN; tried 2021.18.1, 2026-11-26",
        programs=("mpiexec.hydra",),
        before={"I_MPI_PIN_MAPPING": ANY},
        off={"I_MPI_PIN": "0|no|off|disable"},
    ),
    Binder(
        "torchrun",
        AGREES,
        "starts each worker by numactl on the CPUs of its GPU's node that are in the mask",
        "torchrun without --numa-binding",
        "pytorch/pytorch torch/numa/binding.py; tried 2.11.0, 2026-11-27",
        programs=("torchrun", "torch.distributed.run"),
        options=("--numa-binding", "--numa_binding"),
    ),
    Binder(
        "accelerate",
        REPLACES,
        "sets the mask of each process to the CPUs that NVML names for its GPU",
        "ACCELERATE_CPU_AFFINITY=0",
        "huggingface/accelerate src/accelerate/utils/environment.py; read 1.15.0, 2026-11-26",
        programs=("accelerate",),
        options=("--enable_cpu_affinity", "--enable-cpu-affinity"),
        on={"ACCELERATE_CPU_AFFINITY": TRUE},
    ),
    Binder(
        "DeepSpeed",
        REPLACES,
        "starts each rank by numactl on its part of the cores; ends where the mask lacks a core",
        "deepspeed without --bind_cores_to_rank",
        "deepspeedai/DeepSpeed deepspeed/utils/numa.py; tried 0.19.8, 2026-11-26",
        programs=("deepspeed", "deepspeed.launcher.launch"),
        options=("--bind_cores_to_rank",),
    ),
    Binder(
        "vLLM",
        REPLACES,
        "starts its engine and workers by numactl on the NUMA node of their GPUs, memory too",
        "vllm without --numa-bind",
        "vllm-project/vllm #38635, #43270; read 0.22.0, 2026-11-26",
        programs=("vllm", "vllm.entrypoints.openai.api_server"),
        options=("--numa-bind", "--numa-bind-nodes", "--numa-bind-cpus"),
        off_options=("--no-numa-bind",),
    ),
    Binder(
        "vllm-ascend",
        REPLACES,
        "on Arm moves the main and two more threads by taskset, and memory by migratepages",
        "--additional-config '{\"enable_cpu_binding\": false}'",
        "vllm-project/vllm-ascend vllm_ascend/cpu_binding.py; read 05329a0, 2026-11-26",
        programs=("vllm", "vllm.entrypoints.openai.api_server"),
        off_options=("enable_cpu_binding false",),
        needs="ASCEND_RT_VISIBLE_DEVICES",
        threads=("acl_thread", "release_thread"),
    ),
    Binder(
        "SGLang",
        AGREES,
        "starts schedulers by numactl on CPUs of their GPU's node that are in the mask; memory too",
        "SGLANG_AUTO_NUMA_BIND=0, and no --numa-node",
        "sgl-project/sglang srt/utils/numa_utils.py, #26983; read 008b79d, 2026-11-26",
        programs=("sglang", "sglang.launch_server"),
        options=("--numa-node",),
        on={"SGLANG_AUTO_NUMA_BIND": TRUE},
    ),
    Binder(
        "TensorRT-LLM",
        REPLACES,
        "clears the mask while its variable is unset; with 1 takes the CPUs that NVML names",
        "TLLM_NUMA_AWARE_WORKER_AFFINITY=0",
        "NVIDIA/TensorRT-LLM configuring-cpu-affinity.md; read 08314e8, 2026-11-26",
        programs=("trtllm-serve", "trtllm-bench", "trtllm-llmapi-launch"),
        on={"TLLM_NUMA_AWARE_WORKER_AFFINITY": "1"},
        off={"TLLM_NUMA_AWARE_WORKER_AFFINITY": "(?!1$).+"},
        libraries=("libtensorrt_llm",),
        is_hidden=True,
    ),
    Binder(
        "NeMo RL",
        REPLACES,
        "sets each worker's mask and memory policy by a file of the node's GPUs",
        "NRL_DISABLE_NUMA_BINDING=1",
        "NVIDIA-NeMo/RL #2613; read main of 2026-10, 2026-11-26",
        on={"NRL_GPU_CPU_AFFINITY_FILE": ANY},
        is_hidden=True,
    ),
    Binder(
        "Ray",
        NOTHING,
        "workers inherit the mask of ray start; it sets OMP_NUM_THREADS",
        "none is needed",
        "ray-project/ray #55097; tried 2.60.0, 2026-11-26",
        programs=("ray",),
    ),
    Binder(
        "HIP",
        REPLACES,
        "narrows a thread that calls it to the NUMA node of its GPU; a launcher to that of GPU 0",
        "AMD_CPU_AFFINITY=0",
        "ROCm/rocm-systems #6134, #6712; read main of 2026-06, 2026-11-26",
        on={"AMD_CPU_AFFINITY": TRUE},
        libraries=("libamdhip64",),
    ),
    Binder(
        "UCCL",
        THREADS,
        "puts its proxy threads on single CPUs of the GPU's node",
        "UCCL_EP_DISABLE_CPU_AFFINITY=1",
        "uccl-project/uccl #1030; read main of 2026-08, 2026-11-26",
        libraries=("libuccl", "uccl"),
        is_hidden=True,
    ),
    Binder(
        "NCCL",
        THREADS,
        "its threads stay within the mask and the GPU's node; with a variable, not in the mask",
        "NCCL_IGNORE_CPU_AFFINITY=0, and no NCCL_PROXY_CPUSET",
        "NVIDIA/nccl src/graph/topo.cc, src/proxy.cc; read 2.30.7, 2026-11-23",
        on={"NCCL_IGNORE_CPU_AFFINITY": "1", "NCCL_PROXY_CPUSET": ANY},
        libraries=("libnccl", "librccl"),
        threads=("NCCL ",),
    ),
    Binder(
        "GOMP_CPU_AFFINITY",
        REPLACES,
        "OpenMP's threads, the main one first, take the listed CPUs, in the mask or not",
        "OMP_PROC_BIND=false",
        "GNU libgomp manual; tried libgomp 12.2 and libiomp5 2026.2, 2026-11-26",
        on={"GOMP_CPU_AFFINITY": ANY},
        libraries=OPENMP,
    ),
    Binder(
        "OpenMP",
        SPLITS,
        "what the process starts later inherits the main thread's part",
        "OMP_PROC_BIND=false",
        "OpenMP specification 5.2; tried libgomp 12.2 and libiomp5 2026.2, 2026-11-26",
        on={"OMP_PROC_BIND": "(?!false).+", "OMP_PLACES": ANY},
        libraries=OPENMP,
    ),
    Binder(
        "Intel OpenMP",
        SPLITS,
        "with norespect on CPUs outside of the mask, too; OMP_PROC_BIND does not stop it",
        "KMP_AFFINITY=none",
        "Intel C++ Compiler Developer Guide, KMP_AFFINITY; tried libiomp5 2026.2, 2026-11-26",
        on={"KMP_AFFINITY": ".*(compact|scatter|balanced|explicit|logical|physical|norespect).*"},
        libraries=("libiomp5", "libomp"),
    ),
)


@dataclass(frozen=True)
class Acting:
    """A binder that acts, and the word that says so."""

    binder: Binder
    word: str  #: `numactl -N`, or `OMP_PROC_BIND=close`

    def __str__(self) -> str:
        """Return it as a message names it: `OpenMP (OMP_PROC_BIND=close)`."""
        return f"{self.binder.name} ({self.word})"


def earlier(environ: Mapping[str, str]) -> list[Acting]:
    """Return the binders that set the mask with which a process started."""
    marked = ((it, _first(it.before, environ)) for it in BINDERS if not it.is_off(environ))
    return [Acting(binder, word) for binder, word in marked if word is not None]


def later(environ: Mapping[str, str], command: Sequence[str]) -> list[Acting]:
    """Return the binders that act once a command has started, in their order.

    Its programs in their order, then libraries in that of the table.
    """
    # A shell's script is one word; an option has its value behind `=`, or in JSON.
    words = [word for word in re.split(r"""[\s="'{}:;]+""", " ".join(command)) if word]
    names = [word.rpartition("/")[2] for word in words]
    by_command: list[tuple[int, Acting]] = []
    by_variable: list[Acting] = []
    for binder in BINDERS:
        if binder.is_off(environ, words):
            continue
        place = min((names.index(name) for name in binder.programs if name in names), default=None)
        option = next((it for it in binder.options if it in words), None)
        setting = _first(binder.on, environ)
        if place is not None and (option or not binder.options):
            word = f"{names[place]} {option or ''}".strip()
            by_command.append((place, Acting(binder, word)))
        elif setting is not None:
            by_variable.append(Acting(binder, setting))
    by_command.sort(key=lambda it: it[0])
    return [*(acting for _, acting in by_command), *by_variable]


def in_memory(environ: Mapping[str, str], libraries: Sequence[str]) -> Iterator[Acting]:
    """Yield the binders that are on, and have a library among these files of a process."""
    for binder in BINDERS:
        setting = _first(binder.on, environ)
        name = next((it for it in libraries if it.startswith(binder.libraries)), None)
        if name and (setting or binder.is_hidden) and not binder.is_off(environ):
            yield Acting(binder, setting or name)


def own_variables(acting: Sequence[Acting]) -> dict[str, str]:
    """Return the variables by which these binders, and hidden ones, leave the mask alone."""
    hidden = (binder for binder in BINDERS if binder.is_hidden)
    binders = (*hidden, *(it.binder for it in acting))
    return {name: value for binder in binders for name, value in binder.own.items()}


def _first(patterns: Mapping[str, str], environ: Mapping[str, str]) -> str | None:
    """Return the first variable with such a value, as NAME=value."""
    for name, pattern in patterns.items():
        if re.fullmatch(pattern, environ.get(name, ""), re.IGNORECASE):
            return f"{name}={environ[name]}"
    return None
