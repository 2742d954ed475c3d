"""The installed chart: its version, its notes, and its package."""

import json
import tarfile
from pathlib import Path

from affinityd import __version__
from tests.e2e.chart.rendering import CHART, OPTIONS, chosen, helm, loaded, rendered


def test_the_chart_s_version_is_the_package_s() -> None:
    (about,) = loaded((CHART / "Chart.yaml").read_text())
    assert (about["version"], about["appVersion"]) == (__version__, __version__)


def notes_of(text: str) -> str:
    dry = ("--dry-run=client", "--output=json")
    done = helm("install", "affinityd", str(CHART), *dry, *chosen(text))
    return str(json.loads(done.stdout)["info"]["notes"])


def test_the_notes_say_which_values_are_removed() -> None:
    values = """audit.enabled=true hostPID=true audit.measuredFolder=/a enforce.mode=observe
        ports.http=9465 metrics.podMonitor.scrapeTimeout=9s"""
    removed = "audit.measuredFolder, enforce, ports, hostPID, metrics.podMonitor.scrapeTimeout"
    assert f"Removed, and ignored: {removed}. Leave them out." in notes_of(values)
    assert "Removed, and ignored" not in notes_of("default")


def test_the_notes_say_which_users_may_read_pod_names() -> None:
    caution = "Every pod of the cluster can read at port 9465 which pods run here"
    assert caution in notes_of("audit")
    assert caution not in notes_of("everything")  # this option has a NetworkPolicy


def test_a_package_has_all_that_is_rendered_and_no_test_files(tmp_path: Path) -> None:
    assert helm("package", str(CHART), f"--destination={tmp_path}").returncode == 0
    package = tmp_path / f"affinityd-{__version__}.tgz"
    with tarfile.open(package) as tar:
        assert not [name for name in tar.getnames() if "/ci/" in name]
    done = helm("template", "affinityd", str(package), f"--values={OPTIONS['everything']}")
    assert done.stdout == rendered("everything")
