"""Which folders may import from which, and which modules may import third-party packages."""

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter

from tests.support.paths import REPOSITORY

PACKAGE = REPOSITORY / "affinityd"
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
}

#: The folders of the package, from the lowest. A folder imports from lower lines alone.
LAYERS = (
    ("ground",),  # the modules of the package's root
    ("linux",),
    ("config",),
    ("topology",),
    ("machines", "planner"),
    ("discovery", "request", "slurm"),
    ("audit", "client", "picture"),
    ("kubernetes",),
    ("daemon", "doctor"),
    ("cli",),
)
RANK = {folder: rank for rank, folders in enumerate(LAYERS) for folder in folders}

#: The package's public names, whose modules are imported when a name is first used.
FACE = {"affinityd", "affinityd.__main__"}

#: Folders that compute: they must not know where their facts come from, nor the time.
PURE = ("planner", "request")
IMPURE = {"os", "io", "time", "socket", "logging", "pathlib", "subprocess", "random", "datetime"}
PURE_MODULES = (
    *(name for name in MODULES if name.split(".")[1:2] in [[folder] for folder in PURE]),
    *("affinityd.cpuset", "affinityd.text", "affinityd.topology.model"),
    "affinityd.topology.nearness",
    *(f"affinityd.audit.{name}" for name in ("judge", "verify")),
)


TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imports(name: str) -> Iterator[str]:
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (it.name for it in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: imports are absolute"
            names = [f"{node.module}.{it.name}" for it in node.names]
            yield from names
            if not MODULES.keys() >= set(names):  # else the names are modules of that package
                yield node.module or ""


#: For each module: the modules of this package that it imports, and the other packages.
INSIDE = {name: {*imports(name)} & MODULES.keys() - {"affinityd", name} for name in MODULES}
OUTSIDE = {name: {it.partition(".")[0] for it in imports(name)} - {"affinityd"} for name in MODULES}


def folder_of(name: str) -> str:
    return ".".join(MODULES[name].parent.relative_to(PACKAGE).parts) or "ground"


def top(name: str) -> str:
    return folder_of(name).partition(".")[0]


EDGES = {
    (folder_of(name), folder_of(other)): f"{name} imports {other}"
    for name in MODULES.keys() - FACE
    for other in INSIDE[name]
    if folder_of(name) != folder_of(other)
}


def test_every_folder_is_in_the_order_of_layers() -> None:
    assert {top(name) for name in MODULES} == RANK.keys()


def test_a_folder_imports_only_from_lower_ones() -> None:
    tops = {
        (above.partition(".")[0], below.partition(".")[0]): it
        for (above, below), it in EDGES.items()
    }
    wrong = {
        it for (above, below), it in tops.items() if above != below and RANK[above] <= RANK[below]
    }
    assert not wrong


def test_no_import_is_circular() -> None:
    folders: dict[str, set[str]] = {}
    for above, below in EDGES:
        folders.setdefault(above, set()).add(below)
    for edges in (folders, INSIDE):
        TopologicalSorter(edges).prepare()  # raises CycleError, which names the modules


def test_third_party_packages_are_imported_only_by_the_daemon() -> None:
    known = {*sys.stdlib_module_names, "typing_extensions"}  # typing_extensions: only type checkers
    foreign = {name: its - known for name, its in OUTSIDE.items()}
    wrong = {name: its for name, its in foreign.items() if its and top(name) != "daemon"}
    assert wrong == {"affinityd.discovery.nvml.query": {"pynvml"}}
    assert not any("pynvml" in its for name, its in foreign.items() if top(name) == "daemon")


def test_pure_modules_read_no_file_and_no_clock() -> None:
    found = {name: OUTSIDE[name] & IMPURE for name in PURE_MODULES}
    assert {name: its for name, its in found.items() if its} == {}


def test_the_daemon_gets_its_readings_as_arguments() -> None:
    handed = {"affinityd.daemon.main", "affinityd.daemon.state.topology_watcher"}  # use Machine
    its = {name for name in MODULES if top(name) == "daemon"} - handed
    assert [name for name in its if any(top(it) == "discovery" for it in INSIDE[name])] == []


def constants(name: str) -> set[str]:
    targets = [
        target
        for statement in TREES[name].body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for target in ast.walk(statement)
    ]
    return {
        target.id
        for target in targets
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
        if target.id.isupper() and len(target.id) > 1
    }


def test_a_constant_s_name_is_defined_in_one_module() -> None:
    modules: dict[str, list[str]] = {}
    for name in MODULES:
        for constant in constants(name):
            modules.setdefault(constant, []).append(name)
    several = {constant: names for constant, names in modules.items() if len(names) > 1}
    assert several == {}
