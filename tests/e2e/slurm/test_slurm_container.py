"""A TaskProlog in a container: with Pyxis a task enters the container before its TaskProlog runs.

Here a script stands for Pyxis and enroot. Slurm runs it as TaskProlog. It makes a container of the
programs that a case names, as a user can: in a user namespace, with a fresh tmpfs on /run. It
mounts there what the drop-in says, and then executes the real TaskProlog in the container.
"""

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.slurm.node import HOME, INSTALLED, Node, node
from tests.e2e.slurm.rig import Setup
from tests.support.paths import open_folder
from tests.support.tiny import BOTH

DROP_IN = f"{INSTALLED}/enroot/50-affinityd.fstab"

PYXIS = """\
#!/bin/sh
export ROOT={folder}/root INSTALLED={installed}
exec unshare --user --map-root-user --mount sh -e {folder}/enroot.sh
"""
#: The site's mode; the default is `node`.
SETTINGS = "AFFINITYD_MODE=exclusive\n"

CURL, PYTHON = "curl=curl taskset=taskset", "python3=python3"
NO_TASKSET = "taskset is not here, to set CPUs"
NO_CLIENT = "neither curl nor python3 is here, to ask affinityd"

#: An image's shell, its other programs, and why a task stays unpinned; None: it is pinned.
IMAGES = [
    ("dash", f"ls=ls {CURL}", None),
    ("bash", "ls=busybox curl=curl taskset=busybox", None),
    ("dash", f"ls=ls {PYTHON} taskset=taskset", None),
    ("dash", "", NO_CLIENT),
    ("bash", "taskset=taskset", NO_CLIENT),
    ("busybox", "curl=curl", NO_TASKSET),
    ("dash", PYTHON, NO_TASKSET),
]

TWO, THEIRS = ("--ntasks=2", "--gres=gpu:small:2"), [HOME[2], HOME[3]]
Env = Mapping[str, str]


@pytest.fixture(scope="module")
def containers(release: str) -> Iterator[Node]:
    with open_folder("enroot-") as folder:
        (folder / "root").mkdir()
        shutil.copy(Path(__file__).with_name("enroot.sh"), folder)
        (folder / "settings").write_text(SETTINGS)
        pyxis = folder / "pyxis"
        pyxis.write_text(PYXIS.format(folder=folder, installed=INSTALLED))
        pyxis.chmod(0o755)
        binds = {folder / "settings": "/etc/affinityd.conf"}
        setup = Setup(conf=(f"TaskProlog={pyxis}",), binds=binds, release=release)
        with node(setup) as made:
            yield made


def container(image: str = f"sh=dash ls=ls {CURL}", fstab: str = DROP_IN, missing: str = "") -> Env:
    """Return the environment of a step in a container of these programs.

    `missing`: folders of the node that are empty in the container.
    """
    return {"IMAGE": image, "FSTAB": fstab, "MISSING": missing}


@pytest.mark.parametrize(("shell", "programs", "why"), IMAGES)
def test_a_task_in_a_container_is_near_its_gpu_or_says_why_not(
    containers: Node, shell: str, programs: str, why: str | None
) -> None:
    tasks = containers.tasks(*TWO, env=container(f"sh={shell} {programs}"))
    assert [task.unpinned for task in tasks] == [why] * 2
    assert [task.cpus for task in tasks] == ([BOTH] * 2 if why else THEIRS)
    cpulists = [task.variables.get("CPULIST") for task in tasks]
    assert cpulists == ([None] * 2 if why else THEIRS)


def test_the_site_s_settings_apply_in_a_container_too(containers: Node) -> None:
    words = ("--ntasks=2", "--gres=gpu:small:1")
    chosen = containers.tasks(*words, env={**container(), "AFFINITYD_MODE": "node"})
    site_s = containers.tasks(*words, env=container())
    assert [task.cpus for task in (*chosen, *site_s)] == [BOTH] * 4
    assert [task.variables["WARNINGS"] for task in chosen] == ["widened"] * 2
    assert [task.variables["WARNINGS"] for task in site_s] == ["not_unique,widened"] * 2


def test_a_task_in_a_container_dies_without_the_drop_in(containers: Node) -> None:
    """The documentation warns of such deaths, for Slurm 22.05 and newer."""
    with pytest.raises(AssertionError, match="TaskProlog failed status=127"):
        containers.tasks(*TWO, env=container(fstab="/dev/null"))
    # With real Pyxis, slurmstepd is in the container, and does not find the script there.
    with pytest.raises(AssertionError, match=r"task_prolog can not be executed .* No such file"):
        containers.tasks(*TWO, f"--task-prolog={INSTALLED}/elsewhere.sh", env=container())
