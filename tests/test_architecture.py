"""Data flows one way: which module may import which, and what the base package may import."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "affinityd"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

#: Modules that import the packages of the daemon extra; all others are standard library only.
OF_THE_EXTRA = {
    "affinityd.daemon": {"uvloop"},
    "affinityd.server": {"starlette", "uvicorn"},
    "affinityd.collectors": {"prometheus_client"},
    "affinityd.metrics": {"prometheus_client"},
    "affinityd.discovery.nvml": {"pynvml"},
    "affinityd.audit_metrics": {"prometheus_client"},
    "affinityd.enforce_metrics": {"prometheus_client"},
    "affinityd.metric_families": {"prometheus_client"},
    "affinityd.cli.enforce_check": {"tomli"} | ({"tomllib"} - sys.stdlib_module_names),
    "affinityd.enforce.policy": {"tomli"} | ({"tomllib"} - sys.stdlib_module_names),
    "affinityd.api.app": {"fastapi", "starlette"},
    "affinityd.api.audit": {"fastapi", "starlette"},
    "affinityd.api.documents": {"starlette"},
    "affinityd.api.enforce": {"fastapi", "starlette"},
    "affinityd.api.peer": {"starlette"},
    "affinityd.api.protocol": {"httptools", "uvicorn"},
    "affinityd.api.front": {"starlette"},
    "affinityd.api.plan_only": {"starlette"},
    "affinityd.api.problems": {"fastapi", "starlette"},
    "affinityd.api.wire": {"pydantic"},
}

#: What computes must not know where its facts come from, nor who asks.
PURE = [
    *(
        "cpuset",
        "topology",
        "vicinity",
        "placement",
        "domains",
        "modes",
        "sharing",
        "widening",
        "asked",
        "plans",
        "planner",
    ),
    *(
        "launchers",
        "explain",
        "warn",
        "visible",
        "devices",
        "sight",
        "ranks",
        "readers",
        "step",
        "request",
        "answer",
        "words",
        "switch",
    ),
]
IMPURE = {"os", "io", "time", "socket", "logging", "pathlib", "subprocess", "random", "datetime"}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [f"{node.module}.{name.name}" for name in node.names]
            yield from names
            if not MODULES.keys() >= set(names):  # else they are modules of that package
                yield node.module or ""


def inside(path: Path) -> set[str]:
    return {name for name in imports(path) if name in MODULES}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_only_the_daemons_modules_import_more_than_the_standard_library(name: str) -> None:
    roots = {imported.partition(".")[0] for imported in imports(MODULES[name])}
    foreign = roots - sys.stdlib_module_names - {"affinityd"}
    assert foreign == OF_THE_EXTRA.get(name, set())


@pytest.mark.parametrize("name", PURE)
def test_what_computes_neither_reads_nor_looks_at_the_clock(name: str) -> None:
    seen = set(imports(MODULES[f"affinityd.{name}"]))
    assert not {imported.partition(".")[0] for imported in seen} & IMPURE
    assert inside(MODULES[f"affinityd.{name}"]) <= {f"affinityd.{pure}" for pure in PURE} | {
        "affinityd",
        "affinityd.errors",
    }


@pytest.mark.parametrize(
    "name",
    [
        *("service", "keeper", "nodefile", "api.app", "api.front", "api.plan_only"),
        *(
            "api.audit",
            "api.peer",
            "scanner",
            "metrics",
            "audit_metrics",
            "audit_log",
            "job_series",
            "enforcement",
            "enforce_metrics",
            "enforce_log",
        ),
    ],
)
def test_the_daemon_is_handed_its_readings_and_never_imports_discovery(name: str) -> None:
    assert not {it for it in inside(MODULES[f"affinityd.{name}"]) if ".discovery" in it}


def test_discovery_knows_nothing_of_plans_and_servers() -> None:
    allowed = {"affinityd", "affinityd.cpuset", "affinityd.topology", "affinityd.errors"}
    for name, path in MODULES.items():
        if name.startswith("affinityd.discovery"):
            others = {it for it in inside(path) if not it.startswith("affinityd.discovery")}
            assert others <= allowed, name


def test_the_audit_is_handed_what_drivers_say_and_knows_nothing_of_servers() -> None:
    for name, path in MODULES.items():
        if name.startswith("affinityd.audit."):
            parts = {it.split(".")[1] for it in inside(path) if it != "affinityd"}
            assert not parts & {"discovery", "api", "cli", "daemon", "service"}, name


def test_enforcement_asks_no_driver_and_serves_nobody() -> None:
    for name, path in MODULES.items():
        if name.startswith("affinityd.enforce."):
            parts = {it.split(".")[1] for it in inside(path) if it != "affinityd"}
            assert not parts & {"discovery", "api", "cli", "daemon", "service"}, name


@pytest.mark.parametrize("name", ["jobs", "standards", "places", "verdict", "decide", "policy"])
def test_what_decides_whom_to_pin_reads_nothing(name: str) -> None:
    seen = {it.partition(".")[0] for it in imports(MODULES[f"affinityd.enforce.{name}"])}
    assert not seen & IMPURE


def test_no_module_imports_itself_in_a_circle() -> None:
    edges = {name: inside(path) - {name, "affinityd"} for name, path in MODULES.items()}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " → ".join((*above, name))
        if name not in done:
            for imported in edges[name]:
                visit(imported, (*above, name))
            done.add(name)

    for name in edges:
        visit(name, ())


def test_modules_stay_small() -> None:
    lengths = {name: len(path.read_text().splitlines()) for name, path in MODULES.items()}
    assert {name: length for name, length in lengths.items() if length > 260} == {}
