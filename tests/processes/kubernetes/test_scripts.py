"""The scripts of Slurm and of pods read switches, and set NIC variables, as affinityd does."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd import config
from affinityd.client.apply import export_nics
from affinityd.errors import InvalidRequestError
from affinityd.request.environment import NIC_VARIABLES
from tests.support.machines.sysfs_tree import put
from tests.support.paths import REPOSITORY
from tests.support.tables import cases, words
from tests.unit.config.test_config import OTHERS, WORDS

PINNING = REPOSITORY / "slurm/pinning.sh"
SHELLS = (("dash",), ("bash", "--posix"), ("busybox", "sh"))
NAMES = (*NIC_VARIABLES.values(), "AFFINITYD_RDMA")

#: The state of the ports of three devices; mlx5_2 is active, but has no device file.
STATES = {"mlx5_0": "4: ACTIVE", "mlx5_1": "1: DOWN", "mlx5_2": "4: ACTIVE"}
HERE = ("uverbs0", "uverbs1", "uverbs3")  #: uverbs3: another device of mlx5_2's adapter


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "dev/infiniband").mkdir(parents=True)
    for number, (device, state) in enumerate(STATES.items()):
        folder = root / "sys/class/infiniband" / device
        for port in "12":
            (folder / "ports" / port).mkdir(parents=True)
            (folder / "ports" / port / "state").write_text(f"{state}\n")
        put(folder / f"device/infiniband_verbs/uverbs{number}/ibdev", device)
    put(folder / "device/infiniband_verbs/uverbs3/ibdev", "mlx5_3")
    for name in HERE:
        (root / "dev/infiniband" / name).touch()
    return root


def by_script(
    root: Path, shell: tuple[str, ...], said: str, rdma: str, env: Mapping[str, str]
) -> dict[str, str]:
    script = f'. {PINNING}; sys={root}/sys dev={root}/dev rdma="$1"; nic_variables'
    run = [*shell, "-c", script, "sh", rdma]
    env = {"PATH": os.environ["PATH"], "AFFINITYD_NICS": said, **env}
    done = subprocess.run(run, env=env, capture_output=True, text=True, check=False)
    return words(done.stdout)


def by_exec(root: Path, said: str, rdma: str) -> tuple[dict[str, str], list[str]]:
    """Return the variables that `exec` sets, and the lines that say why it does not set others."""
    before = {name: os.environ.get(name) for name in NAMES}
    ports = tuple(filter(None, rdma.split(",")))
    lines = [*(export_nics(said, ports, {"AFFINITYD_ROOT": str(root)}) if said else ())]
    told = {it: os.environ[it] for it in NAMES if os.environ.get(it) not in {None, "", before[it]}}
    return told, lines


@pytest.mark.parametrize(("said", "rdma", "environment", "told", "line"), cases("nics_told.tsv"))
def test_scripts_and_exec_set_the_same_nic_variables(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    said: str,
    rdma: str,
    environment: str,
    told: str,
    line: str,
) -> None:
    env, expected = words(environment), words(told)
    for name in NAMES:
        monkeypatch.setenv(name, env.get(name, ""))
    for shell in SHELLS:
        if shutil.which(shell[0]):
            assert by_script(root, shell, said, rdma, env) == expected
    assert by_exec(root, said, rdma) == (expected, [line] if line else [])


HEED = 'for one; do for other; do switch=on; heed "$one"; heed "$other"; echo $switch; done; done'


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_the_scripts_read_the_switch_as_affinityd_does(shell: str) -> None:
    words = [word for words in WORDS.values() for word in words]
    command = [shell, "-c", f". {PINNING}\n{HEED}", "sh", *words]
    told = subprocess.check_output(command, text=True).split()
    meant = [config.read_switch(word) for word in words]
    assert told == [config.least_switch(one, other) for one in meant for other in meant]
    for word in OTHERS:
        done = subprocess.run([shell, "-c", f'. {PINNING}; heed "$1"', "sh", word], check=False)
        assert done.returncode == 1


FILES = (
    *("", "\n", "A=1", "A=1\n", "A=1\nA=2\nB=x", "# A=1\n;A=2\n \t# x\nA=3"),
    *("A=", "A=''", 'A="', "A='", 'A="\'"', "A=''x", "A='x'y", "A='x y'", '  A\t= " x " \r\n'),
    *("A=x y", "A=x=y=", "=x", "A", "export A=1", "A B=1", "1A=1", "A1_=1", "a.b=1", "\ufeffA=1"),
    *("A=x\\", "A=$(id)", "A=`id`;id", "A=*", f"A={'x' * 9000}", "A=1\n\nB", "A=\u2028", "É=1"),
)
#: Prints the variables, or the name and the number of the wrong line.
READ = """
. "$0"
read_settings "$1" || { printf %s "${fault%% is not*}"; exit; }
for name in A B A1_; do
    eval "value=\\${site_$name-unset}"
    printf '%s=%s|' "$name" "$value"
done
"""


@pytest.mark.parametrize("shell", SHELLS)
def test_the_scripts_read_each_settings_file_as_affinityd_does(
    shell: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "affinityd.conf"
    for content in FILES:
        path.write_bytes(content.encode())
        try:
            settings = config.read_file(str(path))
            expected = "".join(
                f"{name}={settings.get(name, 'unset')}|" for name in ("A", "B", "A1_")
            )
        except InvalidRequestError as error:
            expected = ":".join(str(error).split(":")[:2])
        command = [*shell, "-c", READ, str(PINNING), str(path)]
        printed = subprocess.check_output(command, text=True, env={"PATH": os.environ["PATH"]})
        assert printed == expected, repr(content)
