"""The image: its contents, what it leaves out, and its user."""

import json
import sys
from pathlib import Path

import pytest

from affinityd import __version__
from tests.e2e.containers import images
from tests.e2e.containers.podman import podman
from tests.e2e.containers.rig import UNPRIVILEGED, container, curl, running
from tests.support.daemons import eventually
from tests.support.paths import REPOSITORY
from tests.support.tiny import affinityd, ran
from tests.unit.test_project import PYTHONS, locked

LABEL = "org.opencontainers.image."

#: The privileges of a pod in a namespace that enforces `restricted`.
RESTRICTED = ["--read-only", "--read-only-tmpfs=false", "--cap-drop=all"]
RESTRICTED += ["--security-opt=no-new-privileges"]
USERS = {
    "the image's user": [],
    "a uid that OpenShift chooses, of group 0": ["--user=1000650000:0"],
    "root, as an init step is": ["--user=0:0"],
}

BUILD_TOOLS = ("pip", "pip3", "cc", "gcc", "ld", "make", "hatchling", "easy_install", "wheel")
#: Files and folders of build tools, of wheels that contain pip, and of the builder's pip.
LEFT_OVERS = (
    *("*.whl", "pip", "pip-*", "pip[0-9]*", "pip.conf", ".cache", "setuptools", "wheel"),
    *("pkg_resources", "hatchling", "ensurepip"),
)

#: Prints the modules that Python had to compile: python -v says from where each module came.
COMPILED_ANEW = """\
python -v -c 'import affinityd.daemon.main, affinityd.cli.commands.plan' 2>&1 |
    grep "^# code object from '\\?/.*py'\\?$"
"""


@pytest.fixture(scope="module")
def image() -> str:
    return images.affinityd()


def sh(image: str, script: str, *options: str) -> str:
    """Return the output of a shell in the image; the shell is root's, and may read all files."""
    ended = container(image, "-c", script, options=["--entrypoint=/bin/sh", "--user=0:0", *options])
    assert not ended.stderr, ended.stderr
    return ended.stdout


def test_the_image_serves_as_an_unprivileged_user(image: str) -> None:
    config = json.loads(podman("image", "inspect", image))[0]["Config"]
    assert (config["Entrypoint"], config["Cmd"]) == (["affinityd"], ["serve"])
    assert config["User"] == "65532:65532"
    assert set(config["ExposedPorts"]) == {"9465/tcp", "9466/tcp"}
    labels = {name: it for name, it in config["Labels"].items() if name.startswith(LABEL)}
    assert labels.pop(f"{LABEL}base.name").startswith("localhost/test-base:")
    lines = (REPOSITORY / "pyproject.toml").read_text().splitlines()
    (description,) = (line.split('"')[1] for line in lines if line.startswith("description = "))
    ours = {"title": "affinityd", "version": __version__, "licenses": "Apache-2.0"}
    ours |= {"description": description}
    assert labels == {f"{LABEL}{name}": it for name, it in ours.items()}


@pytest.mark.parametrize("options", USERS.values(), ids=USERS)
def test_the_image_plans_without_privileges(image: str, options: list[str]) -> None:
    words = ("plan", "--machine=dgx-a100", "--gpus=0,1,7", "--format=json")
    inside = container(image, *words, options=[*RESTRICTED, *options])
    assert (inside.status, inside.stderr) == (0, "")
    assert inside.stdout == affinityd(*words).stdout


def test_the_image_has_no_build_tools_installers_or_build_leftovers(image: str) -> None:
    assert "taskset" in sh(image, "taskset --version")
    assert sh(image, f"for tool in {' '.join(BUILD_TOOLS)}; do command -v $tool; done; :") == ""
    wanted = " -o ".join(f"-name '{name}'" for name in LEFT_OVERS)
    assert sh(image, rf"find / -xdev \( {wanted} \)") == ""
    assert sh(image, "ls -A /src /opt/pip /package 2>/dev/null; ls /opt; ls -A /root /tmp") == (
        "affinityd\n/root:\n.bashrc\n.profile\n\n/tmp:\n"
    )


def test_the_image_compiles_nothing_at_start_and_has_the_checkout_s_command(image: str) -> None:
    """A read-only root stores no bytecode: modules without bytecode are compiled at each start."""
    assert sh(image, COMPILED_ANEW) == ""
    without = sh(image, COMPILED_ANEW, "--env=PYTHONPYCACHEPREFIX=/none", "--read-only")
    assert "/affinityd/cli/commands/plan.py" in without
    script = sh(image, "cat /opt/affinityd/bin/affinityd").splitlines()
    assert script[0] == "#!/opt/affinityd/bin/python"
    assert script[1:] == (REPOSITORY / "bin/affinityd").read_text().splitlines()[1:]


def test_the_image_serves_without_a_folder_for_its_socket(image: str, tmp_path: Path) -> None:
    """`podman run IMAGE` mounts no folder: the socket is in the image's own folder."""
    with running(tmp_path, image, "serve", "--machine=dgx-a100") as started:
        url = "http://127.0.0.1:9465/plan?gpus=0&format=cpulist"
        eventually(lambda: curl(started.pid, url).stdout == "48-63,176-191\n", "it answers")


def test_the_container_s_sysfs_shows_the_node_without_a_host_path(image: str) -> None:
    """Names of interfaces differ by network namespace; a virtual machine's memory may change."""
    show = ("topology", "--format=json")
    inside = container(image, *show, options=["--uts=host", *UNPRIVILEGED])
    inside_image, here = (json.loads(said.stdout) for said in (inside, affinityd(*show)))
    for kind, name in (("nics", "names"), ("nodes", "memory_bytes")):
        for part in (*inside_image[kind], *here[kind]):
            part[name] = None
    assert inside_image == here
    assert here["cores"]


# The image has exactly the locked packages, and each has a wheel for every kind of node.

LOCK = REPOSITORY / "deploy/image/requirements.txt"
UV = Path(sys.executable).with_name("uv")

INSTALLED = """\
import importlib.metadata, json
print(json.dumps({it.name: it.version for it in importlib.metadata.distributions()}))
"""


def test_the_image_has_exactly_the_packages_of_the_lock() -> None:
    ended = container(images.affinityd(), "-Ic", INSTALLED, options=["--entrypoint=python"])
    packages = json.loads(ended.stdout)
    inside_image = {name.lower().replace("_", "-"): it for name, it in packages.items()}
    inside_image.pop("affinityd")
    assert inside_image == locked(LOCK.name)


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
def test_the_image_installs_only_wheels(python: str, machine: str, tmp_path: Path) -> None:
    """uv refuses, as pip does, source packages, and packages that have no hash in the lock."""
    wanted = [f"--python-version={python}", f"--python-platform={machine}-manylinux_2_28"]
    strict = ["--require-hashes", "--only-binary=:all:"]
    install = (UV, "pip", "install", "--dry-run", f"--target={tmp_path}")
    done = ran(*install, *wanted, *strict, "-r", LOCK)
    would = {line.split()[1] for line in done.stderr.splitlines() if line.startswith(" + ")}
    assert would == {f"{name}=={version}" for name, version in locked(LOCK.name).items()}
