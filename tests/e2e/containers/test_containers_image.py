"""The image: what is in it, what is not, and as whom it runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from affinityd import __version__
from tests.e2e.containers import images
from tests.e2e.containers.podman import podman
from tests.e2e.containers.rig import container
from tests.support.paths import REPOSITORY
from tests.support.tiny import affinityd

MIB = 2**20

#: What a pod of a namespace that enforces `restricted` runs as.
RESTRICTED = (
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
)

USERS = {
    "the image's own": (),
    "a uid that a pod asks for": ("--user=1000:1000",),
    "a uid that OpenShift chooses, of group 0": ("--user=1000650000:0",),
    "root, as an init step is": ("--user=0:0",),
}

BUILD_TOOLS = ("pip", "pip3", "cc", "gcc", "ld", "make", "hatchling", "easy_install", "wheel")
BUILD_MODULES = ("pip", "setuptools", "wheel", "pkg_resources", "hatchling", "ensurepip")

#: Prints what Python compiled before it could run it: python -v says from where each module came.
COMPILED_ANEW = """\
python -v -c 'import affinityd.daemon.main, affinityd.cli.commands.plan' 2>&1 |
    grep "^# code object from '\\?/.*py'\\?$"
"""


@pytest.fixture(scope="module")
def image() -> str:
    return images.affinityd()


@pytest.fixture(scope="module")
def facts(image: str) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(podman("image", "inspect", image))
    return found[0]


def sh(image: str, script: str, *options: str) -> str:
    """Return what a shell prints in the image, where root may look everywhere."""
    ended = container(image, "-c", script, options=["--entrypoint=/bin/sh", "--user=0:0", *options])
    assert not ended.stderr, ended.stderr
    return ended.stdout


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [hadolint, REPOSITORY / "Dockerfile"], stdout=subprocess.PIPE, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")


def test_it_serves_unless_told_otherwise_and_is_nobody_s(facts: dict[str, Any]) -> None:
    config = facts["Config"]
    assert config["Entrypoint"] == ["affinityd"]
    assert config["Cmd"] == ["serve"]
    assert config["User"] == "65532:65532"
    assert set(config["ExposedPorts"]) == {"9465/tcp", "9466/tcp"}


def test_its_labels_say_what_it_is(facts: dict[str, Any]) -> None:
    prefix = "org.opencontainers.image."
    labels = facts["Config"]["Labels"]
    ours = {key[len(prefix) :]: value for key, value in labels.items() if key.startswith(prefix)}
    assert ours.pop("description") == project("description")
    assert ours.pop("base.name").startswith("localhost/test-base:")
    assert ours == {"title": "affinityd", "version": __version__, "licenses": "Apache-2.0"}


def project(key: str) -> str:
    lines = (REPOSITORY / "pyproject.toml").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{key} = ")).split('"')[1]


@pytest.mark.parametrize("options", USERS.values(), ids=USERS)
def test_it_runs_from_a_read_only_root_without_a_capability(
    image: str, options: tuple[str, ...]
) -> None:
    said = container(image, "version", options=[*RESTRICTED, *options])
    assert (said.status, said.stdout, said.stderr) == (0, f"affinityd {__version__}\n", "")


def test_it_plans_what_is_planned_outside(image: str) -> None:
    words = ("plan", "--machine=dgx-a100", "--gpus=0,1,7", "--format=json")
    inside, outside = container(image, *words, options=RESTRICTED), affinityd(*words)
    assert (inside.status, inside.stderr) == (0, "")
    assert inside.stdout == outside.stdout


def test_it_has_taskset(image: str) -> None:
    assert "taskset" in sh(image, "taskset --version")


def test_nothing_in_it_builds_or_installs(image: str) -> None:
    assert sh(image, f"for tool in {' '.join(BUILD_TOOLS)}; do command -v $tool; done; :") == ""


@pytest.mark.parametrize("module", BUILD_MODULES)
@pytest.mark.parametrize("python", ["/opt/affinityd/bin/python", "/usr/bin/python3"])
def test_no_python_in_it_has_a_module_that_builds(image: str, python: str, module: str) -> None:
    code = f"import importlib.util as u; print(u.find_spec({module!r}))"
    assert sh(image, f'{python} -I -c "{code}"') == "None\n"


def test_nothing_of_the_build_is_left_in_it(image: str) -> None:
    """No wheel to make pip from, no cache, no source, no setting of the builder's pip."""
    names = ("*.whl", "pip", "pip-*", "pip[0-9]*", "pip.conf", ".cache")
    wanted = " -o ".join(f"-name '{name}'" for name in names)
    assert sh(image, rf"find / -xdev \( {wanted} \)") == ""
    assert sh(image, "ls -A /src /opt/pip /package 2>/dev/null; ls /opt; ls -A /root /tmp") == (
        "affinityd\n/root:\n.bashrc\n.profile\n\n/tmp:\n"
    )


def test_nothing_is_compiled_when_it_starts(image: str) -> None:
    """A read-only root keeps no bytecode: what comes without is compiled at each start."""
    assert sh(image, COMPILED_ANEW) == ""
    without = sh(image, COMPILED_ANEW, "--env=PYTHONPYCACHEPREFIX=/none", "--read-only")
    assert "/affinityd/cli/commands/plan.py" in without


def test_the_command_is_the_one_that_starts_without_what_the_daemon_needs(image: str) -> None:
    script = sh(image, "cat /opt/affinityd/bin/affinityd").splitlines()
    assert script[0] == "#!/opt/affinityd/bin/python"
    assert script[1:] == (REPOSITORY / "bin/affinityd").read_text().splitlines()[1:]


def test_what_it_adds_to_its_base_is_small(facts: dict[str, Any]) -> None:
    base = json.loads(podman("image", "inspect", facts["Config"]["Labels"][BASE_NAME]))[0]
    assert facts["Size"] - base["Size"] < 48 * MIB


BASE_NAME = "org.opencontainers.image.base.name"


@pytest.fixture(scope="module")
def changed(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Build the image of a checkout in which one line of ours is another."""
    checkout = tmp_path_factory.mktemp("changed") / "checkout"
    ignored = shutil.ignore_patterns(".*", "__pycache__", "tests")
    shutil.copytree(REPOSITORY, checkout, ignore=ignored)
    shutil.copy(REPOSITORY / ".dockerignore", checkout)
    with (checkout / "affinityd/__init__.py").open("a") as package:
        package.write("# changed\n")
    tag = f"{image}-changed"
    built = images.build(tag, checkout=checkout)
    assert built.returncode == 0, built.stderr
    yield json.loads(podman("image", "inspect", tag))[0]
    podman("rmi", "--force", tag)


def test_an_upgrade_brings_one_small_layer(facts: dict[str, Any], changed: dict[str, Any]) -> None:
    old, new = (it["RootFS"]["Layers"] for it in (facts, changed))
    assert len(new) == len(old)
    assert [layer for layer in new if layer not in old] == new[-1:]


def test_without_a_name_the_image_is_that_of_the_release(image: str) -> None:
    built = images.build()
    assert built.stdout == f"localhost/affinityd:{__version__}\n"
    podman("rmi", "--force", built.stdout.strip())
    assert podman("image", "exists", image) == ""


def test_a_build_that_fails_says_so_and_prints_no_name() -> None:
    built = images.build("localhost/affinityd:never", BASE_IMAGE="localhost/no-such-base")
    assert (built.returncode, built.stdout) == (1, "")
    assert built.stderr.splitlines()[-1] == "podman could not build localhost/affinityd:never."


def test_without_podman_and_docker_it_says_what_is_missing(tmp_path: Path) -> None:
    for program in ("dirname", "sed"):
        (tmp_path / program).symlink_to(shutil.which(program) or "/bin/true")
    done = subprocess.run(
        ["/bin/sh", REPOSITORY / "scripts/image"],
        env={"PATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "An image is built by podman or docker; neither is here.\n"


def test_docker_builds_it_where_there_is_no_podman(tmp_path: Path) -> None:
    """With options that docker has, too; it is none that builds here."""
    for program in ("dirname", "sed"):
        (tmp_path / program).symlink_to(shutil.which(program) or "/bin/true")
    (tmp_path / "docker").write_text('#!/bin/sh\nprintf "%s\\n" "$@" >&2\n')
    (tmp_path / "docker").chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", REPOSITORY / "scripts/image", "registry.example.com/affinityd:1", "--no-cache"],
        env={"PATH": os.fspath(tmp_path), "BASE_IMAGE": "debian-python:12"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "registry.example.com/affinityd:1\n")
    assert done.stderr.splitlines() == [
        *("build", "--tag", "registry.example.com/affinityd:1"),
        *("--build-arg", f"VERSION={__version__}", "--build-arg", "BASE_IMAGE=debian-python:12"),
        *("--no-cache", f"{REPOSITORY}"),
    ]
