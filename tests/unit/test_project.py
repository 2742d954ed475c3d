"""The pages describe every name and example of the code; the lock and the suites are complete."""

import re
import sys
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from affinityd import __version__
from affinityd.config import PLAN_PARAMETERS
from affinityd.config.settings import DEFAULT_LISTEN, SETTING_NAMES, Settings
from affinityd.cpuset import MAX_CPUS
from affinityd.daemon.api import peers, plan
from affinityd.discovery import gpus
from affinityd.doctor.checks import kernel
from affinityd.planner import WARNINGS, choose, modes
from affinityd.planner.modes import MODES
from affinityd.request.environment import MAX_ENTRIES
from affinityd.request.parameters import MAX_LENGTH, PARAMETERS
from affinityd.topology.nearness import CAUSES
from docs.check.blocks import BLOCKS
from tests.support.asking import ask, cpulists
from tests.support.doctor_facts import facts_of
from tests.support.machines.facts import machine
from tests.support.paths import REPOSITORY

MODE, VENDORS, HUGE_PAGES, ROW = (
    it.text for it in BLOCKS if (it.page, it.kind) == ("CONTRIBUTING.md", "python")
)


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/planning.md", MODES),
        ("docs/api.md", PARAMETERS),
        ("docs/api.md", (*WARNINGS, *CAUSES)),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in SETTING_NAMES]),
        ("docs/settings.md", [f"AFFINITYD_{name.upper()}" for name in PLAN_PARAMETERS]),
    ],
)
def test_pages_mention_every_name_of_the_code(page: str, words: Iterable[str]) -> None:
    text = (REPOSITORY / page).read_text()
    assert [word for word in words if f"`{word}`" not in text] == []


CHART = REPOSITORY / "deploy/helm/affinityd"
RULES = yaml.safe_load((CHART / "rules/affinityd.yaml").read_text())
ALERTS = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
}
PYTHONS_TESTED = re.findall(r"Python :: (3\.\d+)", (REPOSITORY / "pyproject.toml").read_text())
BOARDS = len([*(CHART / "dashboards").iterdir()])

COMPARED = (REPOSITORY / "bench/machines.md").read_text()


def right_answers(tool: str) -> str:
    """Return how often a tool was right in the comparison of tools, like `253 of 422`."""
    row = rf"^\| {tool} \|.*?\| (\d+) \| (\d+) \|"
    questions, right = re.findall(row, COMPARED, re.MULTILINE)[0]
    return f"{right} of {questions}"


#: A page, a pattern that finds a number or a version in it, and the true value.
FACTS = [
    ("README.md", r"Python\s(3\.\d+)", PYTHONS_TESTED[0]),
    ("README.md", r"(\w+) dashboards", {2: "two"}[BOARDS]),
    ("README.md", r"on (\d+) machines", re.findall(r"(\d+) of the \d+ machines", COMPARED)[0]),
    ("README.md", r"was right in (\d+ of \d+)", right_answers("affinityd")),
    ("README.md", r"gpu_affinity in (\d+ of \d+)", right_answers("gpu_affinity")),
    ("README.md", r"local rank in (\d+ of \d+)", right_answers("numactl-by-rank")),
    ("docs/install.md", r"Python (3\.\d+) or newer", PYTHONS_TESTED[0]),
    (
        "docs/install.md",
        r"(3\.\d+ to 3\.\d+) are tested",
        f"{PYTHONS_TESTED[0]} to {PYTHONS_TESTED[-1]}",
    ),
    ("docs/*.md", r"/affinityd:(\d+\.\d+\.\d+)", __version__),
    ("deploy/**/*.yaml", r"/affinityd:(\d+\.\d+\.\d+)", __version__),
    ("bench/machines.md", r"\| affinityd[-\w]* \| ([\d.]+) \|", __version__),
    ("docs/faults.md", r"connections of one user; .*? \| (\d+)", peers.MOST_OF_ONE),
    ("docs/faults.md", r"one request, .*? \| ([\d,]+) bytes", peers.MOST_RECEIVED),
    ("docs/faults.md", r"a query \| ([\d,]+)", MAX_LENGTH),
    ("docs/faults.md", r"parameters \| (\d+)", plan.MAX_FIELDS),
    ("docs/faults.md", r"\| (\d+) entries", MAX_ENTRIES),
    ("docs/faults.md", r"ranks on a node \| (\d+)", MAX_ENTRIES),
    ("docs/faults.md", r"CPU numbers \| up to (\d+)", MAX_CPUS - 1),
    ("docs/faults.md", r"remembered plans \| (\d+)", plan.MOST_REPLIES),
    ("docs/faults.md", r"with at most ([\d,]+) CPU numbers", plan.MOST_CPUS),
    ("docs/hpc.md", r"at most (\d+) ranks and", choose.MOST_RANKS),
    ("docs/hpc.md", r"ranks and (\d+) GPUs", choose.MOST_GPUS),
    ("docs/settings.md", r"`AFFINITYD_SCAN_INTERVAL` \| `(\d+)`", Settings().scan_interval),
    ("docs/settings.md", r"`AFFINITYD_LISTEN` \| `(.*?)`", "{}:{}".format(*DEFAULT_LISTEN)),
]


@pytest.mark.parametrize(("pages", "pattern", "truth"), FACTS)
def test_numbers_on_pages_are_those_of_the_code(pages: str, pattern: str, truth: object) -> None:
    named = [
        number.replace(",", "")
        for page in REPOSITORY.glob(pages)
        for number in re.findall(pattern, page.read_text())
    ]
    assert {*named} == {str(truth)}


def test_the_alerts_page_has_the_severity_and_duration_of_each_alert() -> None:
    page = (REPOSITORY / "docs/alerts.md").read_text()
    named = re.findall(r"^## (\w+)\n\n(\w+)(?:, for (\w+))?", page, re.MULTILINE)
    assert named == [
        (name, alert["labels"]["severity"].capitalize(), alert.get("for", ""))
        for name, alert in ALERTS.items()
    ]


def defined(text: str, module: object) -> dict[str, Any]:
    names = dict(vars(module))
    exec(text, names)  # noqa: S102 - the page's own
    return names


def test_the_example_of_a_mode_gives_every_rank_the_last_core_of_its_gpu_s_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(MODES, "last", defined(MODE, modes)["MODES"]["last"])
    reply = ask(machine("dgx-1v"), gpus="0,1,4", mode="last")
    assert cpulists(reply) == ["19,59", "19,59", "39,79"]
    assert [rank.threads for rank in reply.ranks] == [1, 1, 1]


def test_the_page_s_example_of_a_vendor_adds_a_vendor() -> None:
    assert defined(VENDORS, gpus)["VENDORS"].items() > gpus.VENDORS.items()


@pytest.mark.parametrize(
    ("setting", "status"), [("always [madvise] never", "ok"), ("always madvise [never]", "warn")]
)
def test_the_example_of_a_check_judges_huge_pages(
    tmp_path: Path, setting: str, status: str
) -> None:
    facts = facts_of(tmp_path, files={"sys/kernel/mm/transparent_hugepage/enabled": setting})
    found = [*defined(HUGE_PAGES, kernel)["huge_pages"](facts)]
    assert found[0].status == status
    assert "kernel.huge_pages" in ROW


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT: dict[str, Any] = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
DAEMON = PROJECT["project"]["optional-dependencies"]["daemon"]

LOCKS = {"requirements.txt": DAEMON, "build.txt": PROJECT["build-system"]["requires"]}
PYTHONS = ("3.11", "3.12", "3.13")


def test_the_nvml_extra_is_part_of_the_daemon_extra() -> None:
    (needed,) = PROJECT["project"]["optional-dependencies"]["nvml"]
    assert Requirement(needed).name == "nvidia-ml-py"
    assert needed in DAEMON


def locked(name: str) -> dict[str, str]:
    text = (REPOSITORY / "deploy/image" / name).read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)", text, re.MULTILINE))


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("name", LOCKS)
def test_the_lock_has_every_package_of_pyproject(name: str, python: str) -> None:
    there = {"python_version": python}
    asked = [Requirement(line) for line in LOCKS[name]]
    meant = [it for it in asked if it.marker is None or it.marker.evaluate(there)]
    versions = locked(name)
    assert meant
    assert [it for it in meant if not it.specifier.contains(versions.get(it.name, "0"))] == []


@pytest.mark.parametrize("name", LOCKS)
def test_requirements_name_no_package_index(name: str) -> None:
    text = (REPOSITORY / "deploy/image" / name).read_text()
    assert re.findall(r"(?i)https?:|index|find-links|trusted-host", text) == []


TESTS = REPOSITORY / "tests"
ROWS = [
    row.split() for row in (TESTS / "suites").read_text().splitlines() if not row.startswith("#")
]


def test_every_test_file_is_in_a_suite() -> None:
    folders = [TESTS / name for name, *_ in ROWS] + [TESTS / "e2e" / name for name, *_ in ROWS]
    files = [path for path in TESTS.rglob("*.py") if path.name.startswith("test_")]
    assert [path for path in files if not {*folders} & {*path.parents}] == []


def test_a_copy_of_slurm_s_scripts_has_no_link_that_leads_out_of_it() -> None:
    assert not [path for path in (REPOSITORY / "slurm").rglob("*") if path.is_symlink()]


def test_workflows_pin_actions_by_commit_and_attest_without_running_commands() -> None:
    for path in (REPOSITORY / ".github/workflows").iterdir():
        jobs = yaml.safe_load(path.read_text())["jobs"]
        for job in jobs.values():
            steps = job["steps"]
            actions = [step["uses"] for step in steps if "uses" in step]
            assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in actions), actions
            if "attestations" in job["permissions"]:
                assert len(actions) == len(steps)


def test_the_pictures_show_the_current_page_and_dashboards() -> None:
    """scripts/pictures makes them again."""
    page = REPOSITORY / "affinityd/daemon/api/page"
    dashboards = REPOSITORY / "deploy/helm/affinityd/dashboards"
    files = (page / "page.html", *sorted(page.glob("*.css")), *sorted(page.glob("*.js")))
    files += tuple(sorted(dashboards.iterdir()))
    made_from = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    pictures = REPOSITORY / "docs/pictures"
    assert (pictures / "made-from").read_text().strip() == made_from
    for picture in pictures.glob("*.png"):
        content = picture.read_bytes()
        assert len(content) < 150_000
        assert int.from_bytes(content[16:20], "big") == 1440  # pixels, of the PNG's first chunk
