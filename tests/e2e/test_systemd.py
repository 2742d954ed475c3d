"""The unit file, as systemd itself reads and judges it."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from affinityd import conffile, settings

pytestmark = pytest.mark.systemd

DEPLOY = Path(__file__).parents[2] / "deploy" / "systemd"
UNIT = DEPLOY / "affinityd.service"
TRUE = shutil.which("true") or "/bin/true"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def verify(root: Path, unit: str) -> subprocess.CompletedProcess[str]:
    """Let systemd check a unit on a machine of its own, where its programs are installed."""
    for program in ("usr/bin/affinityd", "bin/kill"):
        (root / program).parent.mkdir(parents=True)
        shutil.copy(TRUE, root / program)
    folder = root / "etc/systemd/system"
    folder.mkdir(parents=True)
    (folder / UNIT.name).write_text(unit)
    options = ("--man=no", "--recursive-errors=no", f"--root={root}")
    return run("systemd-analyze", "verify", *options, UNIT.name)


def test_systemd_has_nothing_to_say_about_the_unit(tmp_path: Path) -> None:
    result = verify(tmp_path, UNIT.read_text())
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("right", "wrong", "complaint"),
    [
        pytest.param("RestartSec=", "RestratSec=", "RestratSec", id="a key that it does not know"),
        pytest.param("=on-failure", "=sometimes", "sometimes", id="a value that it does not know"),
        pytest.param("/usr/bin/", "/nowhere/", "not executable", id="a program that is not there"),
    ],
)
def test_the_check_would_notice(tmp_path: Path, right: str, wrong: str, complaint: str) -> None:
    assert right in UNIT.read_text()
    assert complaint in verify(tmp_path, UNIT.read_text().replace(right, wrong)).stderr


@pytest.fixture(scope="module")
def security() -> tuple[str, ...]:
    """The command that lets systemd judge a unit which is not installed."""
    if "--offline" not in run("systemd-analyze", "--help").stdout:
        pytest.skip("systemd judges units that are not installed since its version 250")
    return ("systemd-analyze", "security", "--offline=true", "--no-pager")


def test_its_exposure_is_no_more_than_2_of_10(security: tuple[str, ...]) -> None:
    result = run(*security, "--threshold=20", str(UNIT))
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "protection",
    [
        pytest.param("PrivateDevices=", id="it sees the GPUs"),
        pytest.param("ProtectProc=", id="it sees every user's processes"),
        pytest.param("ProcSubset=", id="it sees the driver's files in proc"),
        pytest.param("PrivateUsers=", id="it sees which user asks"),
        pytest.param("PrivateNetwork=", id="it can be reached over TCP"),
        pytest.param("IPAddressDeny=", id="it can be reached from other machines if told to"),
    ],
)
def test_the_hardening_does_not_blind_it(security: tuple[str, ...], protection: str) -> None:
    checks = json.loads(run(*security, "--json=short", str(UNIT)).stdout)
    assert {check["name"]: check["set"] for check in checks}[protection] is False


#: What the file has for what starts jobs, besides the daemon's settings.
OF_JOBS = {"mode", "scope", "drain"}


def test_the_sample_settings_are_the_defaults_and_affinityd_knows_them_all(tmp_path: Path) -> None:
    lines = (DEPLOY / "affinityd.conf").read_text().splitlines()
    assignments = [line[1:] for line in lines if line.startswith("#" + conffile.PREFIX)]
    names = [line.split("=")[0].removeprefix(conffile.PREFIX).lower() for line in assignments]
    assert set(names) == (set(settings.NAMES) - {"root", "machine"}) | OF_JOBS
    sample, empty = tmp_path / "affinityd.conf", tmp_path / "empty.conf"
    sample.write_text("\n".join(assignments))
    empty.touch()
    loaded = settings.load({}, {"AFFINITYD_CONFIG": str(sample)})
    default = settings.load({}, {"AFFINITYD_CONFIG": str(empty)})
    assert (loaded.listen, loaded.log_format) == (default.listen, default.log_format)
    assert loaded.reserved_cpus == {0, 64}
    assert (loaded.scan_interval, loaded.job_series) == (default.scan_interval, default.job_series)
