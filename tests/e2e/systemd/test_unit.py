"""The unit file, as systemd itself reads, judges and runs it."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd import config
from affinityd.config import settings
from tests.e2e.systemd.unit_manager import UNIT, installed, needs_manager, started
from tests.support.daemons import eventually, is_ready

DEPLOY = UNIT.parent
ENFORCE = DEPLOY / f"{UNIT.name}.d" / "enforce.conf"
TRUE = shutil.which("true") or "/bin/true"

#: The drop-in as it is, and with all that it offers.
ALONE: Mapping[str, str] = {}
PINNING = {ENFORCE.name: ENFORCE.read_text()}
ALL_OF_IT = {ENFORCE.name: re.sub(r"^#([A-Z])", r"\1", ENFORCE.read_text(), flags=re.MULTILINE)}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def complaints(root: Path, unit: str, drop_ins: Mapping[str, str] = ALONE) -> str:
    """Let systemd check a unit on a machine of its own, where its programs are installed."""
    for path in (root / "usr/bin/affinityd", root / "bin/kill"):
        path.parent.mkdir(parents=True)
        shutil.copy(TRUE, path)
    installed(root / "etc/systemd/system", unit, drop_ins)
    options = ("--man=no", "--recursive-errors=no", f"--root={root}")
    done = run("systemd-analyze", "verify", *options, UNIT.name)
    return f"{done.returncode or ''}{done.stdout}{done.stderr}"


@pytest.mark.parametrize("drop_ins", [ALONE, PINNING, ALL_OF_IT], ids=["alone", "pins", "all"])
def test_systemd_has_nothing_to_say_about_the_unit(
    tmp_path: Path, drop_ins: Mapping[str, str]
) -> None:
    unit = UNIT.read_text()
    assert complaints(tmp_path / "right", unit, drop_ins) == ""
    wrong = {name: text.replace("Bounding", "Binding") for name, text in drop_ins.items()}
    told = complaints(tmp_path / "wrong", unit.replace("RestartSec", "RestratSec"), wrong)
    assert "RestratSec" in told
    assert ("CapabilityBindingSet" in told) == bool(wrong)


@pytest.mark.parametrize(("drop_ins", "tenths"), [(ALONE, 20), (PINNING, 22)])
def test_its_exposure_is_no_more_than_so_many_tenths_of_10(
    tmp_path: Path, drop_ins: Mapping[str, str], tenths: int
) -> None:
    if "--offline" not in run("systemd-analyze", "--help").stdout:
        pytest.skip("systemd judges units that are not installed since its version 250")
    unit = installed(tmp_path, UNIT.read_text(), drop_ins)
    security = ("systemd-analyze", "security", "--offline=true", "--no-pager")
    result = run(*security, f"--threshold={tenths}", f"{unit}")
    assert result.returncode == 0, result.stdout


#: What the file has for what starts jobs, besides the daemon's settings.
OF_JOBS = {"mode", "nics", "scope", "drain"}


def test_the_sample_settings_are_the_defaults_and_affinityd_knows_them_all(tmp_path: Path) -> None:
    lines = (DEPLOY / "affinityd.conf").read_text().splitlines()
    assignments = [line[1:] for line in lines if line.startswith("#" + config.PREFIX)]
    names = [line.split("=")[0].removeprefix(config.PREFIX).lower() for line in assignments]
    assert set(names) == (set(settings.NAMES) - {"root", "machine"}) | OF_JOBS
    sample, empty = tmp_path / "affinityd.conf", tmp_path / "empty.conf"
    sample.write_text("\n".join(assignments))
    empty.touch()
    loaded = settings.load({}, {"AFFINITYD_CONFIG": str(sample)})
    default = settings.load({}, {"AFFINITYD_CONFIG": str(empty)})
    assert (loaded.listen, loaded.log_format) == (default.listen, default.log_format)
    assert loaded.reserved_cpus == {0, 64}
    assert (loaded.scan_interval, loaded.job_series) == (default.scan_interval, default.job_series)


@needs_manager
@pytest.mark.parametrize(
    ("drop_ins", "does"), [(ALONE, "observe"), (PINNING, "pin"), (ALL_OF_IT, "pin")]
)
def test_a_daemon_that_is_to_pin_observes_without_the_drop_in_and_says_why(
    tmp_path: Path, drop_ins: Mapping[str, str], does: str
) -> None:
    asked = "[Service]\nEnvironment=AFFINITYD_ENFORCE=pin AFFINITYD_LISTEN=none\n"
    with started(tmp_path, "-m affinityd serve", {**drop_ins, "asked.conf": asked}) as daemon:
        eventually(lambda: is_ready(daemon), "the daemon is ready")
        eventually(lambda: daemon.get("/enforce").status == 200, "it has looked once")
        answer = daemon.get("/enforce").json
        warnings = [line for line in daemon.lines if "observes instead of pinning" in line]
    assert (answer["enforce"], answer["does"]) == ("pin", does)
    for told in (warnings, [it for it in [answer["hindrance"]] if it]):
        assert ["enforce.conf" in line for line in told] == [True] * (does == "observe")
