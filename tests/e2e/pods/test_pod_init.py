"""`affinityd init`: what a pod is given, with a daemon, with one that comes late, and without."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from affinityd.json_codec import dumps
from tests.support.daemons import PATIENCE, Daemon, eventually, running, spawn
from tests.support.machines.by_hand import made
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import nvml_report, write_tree
from tests.support.servers import answering, hanging, http, serving
from tests.support.tiny import Ended, affinityd
from tests.unit.request.test_devices import EIGHT

BLOCKS = {"AFFINITYD_MODE": "unique-contiguous"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = write_tree(EIGHT, tmp_path_factory.mktemp("machine"))
    (tree / "nvml.json").write_text(dumps(nvml_report(EIGHT)))
    return tree


@pytest.fixture(scope="module")
def daemon(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("node")
    with running(folder, "--root", str(tree), listen="127.0.0.1:0") as started:
        yield started


def port(daemon: Daemon) -> str:
    """Return the TCP port that its first line tells."""
    return daemon.lines[0].rsplit(":", 1)[1]


def init(
    to: Path, *words: str, socket: Path | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    where = ["--socket", str(socket)] if socket else []
    return affinityd("init", "--to", str(to), *where, *words, env=env)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_pod_is_given_the_plan_of_the_whole_node(daemon: Daemon, tmp_path: Path) -> None:
    done = init(tmp_path / "to", socket=daemon.socket, env=BLOCKS)
    assert (done.status, done.stderr) == (0, "")
    assert done.stdout == (
        f"affinityd init: {tmp_path}/to has the places of 8 GPUs, "
        f"as the daemon at {daemon.socket} says\n"
    )
    found = contents(tmp_path / "to")
    plan = json.loads(found["plan.json"])
    assert plan == daemon.plan("mode=unique_contiguous&share=node&whose=node")
    for rank, gpu in zip(plan["ranks"], EIGHT.gpus, strict=True):
        for name in (gpu.uuid, str(gpu.minor), gpu.pci_bus_id, *(it.uuid for it in gpu.mig)):
            assert found[f"gpu/{name}.cpulist"] == f"{rank['cpulist']}\n"
            assert found[f"gpu/{name}.locality"] == "local\n"
    assert {name for name in found if "/" not in name} == {
        *("plan.json", "run", "pinning.sh", "settings")
    }
    assert len(found) == 4 + 2 * (8 * 3 + 2)


def test_by_default_every_gpu_has_all_of_its_node(daemon: Daemon, tmp_path: Path) -> None:
    init(tmp_path, socket=daemon.socket)
    assert (tmp_path / "gpu/7.cpulist").read_text() == "48-63,176-191\n"


@pytest.mark.parametrize(
    ("said", "query"),
    [
        pytest.param({}, "mode=node", id="all of the node"),
        pytest.param({"SCOPE": "socket"}, "mode=all&scope=socket", id="of the socket"),
        pytest.param({"MODE": "exclusive"}, "mode=exclusive&share=node", id="parts"),
        pytest.param({"MODE": "even"}, "mode=even", id="parts by number"),
        pytest.param({"MODE": "core-complex"}, "mode=core_complex", id="caches by number"),
        pytest.param(
            {"MODE": "single_unique", "SHARE": "requested"},
            "mode=single_unique&share=requested",
            id="as is said",
        ),
        pytest.param(
            {"MODE": "exclusive", "STRICT": "true", "MIN_PHYSICAL_CORES": "99"},
            "mode=exclusive&share=node",
            id="what refuses a container is no matter of the node's",
        ),
        pytest.param(
            {"MULTITHREADING": "single_logical", "MAX_PHYSICAL_CORES": "3"},
            "mode=node&multithreading=single_logical&max_physical_cores=3",
            id="fewer CPUs",
        ),
    ],
)
def test_the_init_container_s_settings_choose(
    daemon: Daemon, tmp_path: Path, said: dict[str, str], query: str
) -> None:
    env = {f"AFFINITYD_{name}": text for name, text in said.items()}
    assert init(tmp_path, socket=daemon.socket, env=env).stderr == ""
    ours = json.loads((tmp_path / "plan.json").read_text())
    theirs = daemon.plan(query)
    assert [it["cpulist"] for it in ours["ranks"]] == [it["cpulist"] for it in theirs["ranks"]]
    settings = (tmp_path / "settings").read_text().splitlines()
    lines = {f'[ -n "${{{name}-}}" ] || {name}={text}' for name, text in env.items()}
    assert set(settings[1:]) == lines


def test_settings_reach_a_shell_to_the_letter(daemon: Daemon, tmp_path: Path) -> None:
    odd = tmp_path / "it's a $folder; exit 3"
    odd.mkdir()
    (odd / "s").symlink_to(daemon.socket)
    init(tmp_path / "to", socket=odd / "s")
    script = f'. {tmp_path}/to/settings; printf %s "$AFFINITYD_SOCKET"'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == str(odd / "s")


def test_it_asks_by_the_service_and_leaves_no_name_to_look_up(
    daemon: Daemon, tmp_path: Path
) -> None:
    done = init(tmp_path, "--url", f"http://localhost:{port(daemon)}/")
    assert done.stdout.endswith(f"as the daemon at http://127.0.0.1:{port(daemon)} says\n")
    line = (tmp_path / "settings").read_text()
    assert (
        line == f'[ -n "${{AFFINITYD_URL-}}" ] || AFFINITYD_URL=http://127.0.0.1:{port(daemon)}\n'
    )


def test_the_variables_of_the_init_container_name_the_daemon(
    daemon: Daemon, tmp_path: Path
) -> None:
    said = {"AFFINITYD_URL": f"http://127.0.0.1:{port(daemon)}", "AFFINITYD_SOCKET": "/nobody"}
    done = init(tmp_path, "--timeout=2", env=said)
    assert done.stdout.endswith(f"as the daemon at http://127.0.0.1:{port(daemon)} says\n")


@pytest.mark.parametrize(
    "url", ["affinityd:9466", "http://", "http://x", "https://x:1", "http://x:1/plan", "http://:9"]
)
def test_a_url_of_another_form_is_refused(tmp_path: Path, url: str) -> None:
    done = init(tmp_path, "--url", url)
    assert done.status == 2
    assert done.lines == [
        f"affinityd init: url: '{url}' is not http://HOST:PORT; write it like http://affinityd:9466"
    ]


def test_it_waits_for_a_daemon_that_comes_late(tree: Path, tmp_path: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "affinityd", "init", "--to", tmp_path / "to"],
        env={**os.environ, "AFFINITYD_SOCKET": str(tmp_path / "affinityd.sock")},
        stdout=subprocess.PIPE,
        text=True,
    )
    eventually((tmp_path / "to/run").exists, "what asks is there at once")
    time.sleep(0.5)
    assert waiting.poll() is None
    daemon = spawn(tmp_path, "--root", str(tree))
    try:
        assert "as the daemon at" in waiting.communicate(timeout=15)[0]
        assert waiting.returncode == 0
    finally:
        daemon.process.kill()
        daemon.process.wait()


def test_without_a_daemon_it_waits_no_longer_than_it_may(tree: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    env = {"AFFINITYD_ROOT": str(tree), **BLOCKS}
    done = init(tmp_path / "to", "--timeout=1", socket=tmp_path / "nobody", env=env)
    assert 1.0 <= time.monotonic() - began < PATIENCE
    assert done.status == 0
    assert done.lines == [
        f"affinityd init: no daemon at {tmp_path}/nobody: No such file or directory"
    ]
    assert done.stdout == f"affinityd init: {tmp_path}/to has the places of 8 GPUs, as sysfs says\n"
    assert (tmp_path / "to/gpu/7.cpulist").read_text() == "48-55,176-183\n"


def test_a_daemon_that_has_stopped_has_left_its_node_file(tree: Path, tmp_path: Path) -> None:
    with running(tmp_path / "run", "--root", str(tree), "--reserved-cpus", "48-55") as daemon:
        socket = daemon.socket
    done = init(tmp_path / "to", "--timeout=0.3", socket=socket)
    assert done.stdout.endswith("as node.json says\n")
    assert (tmp_path / "to/gpu/7.cpulist").read_text() == "56-63,176-191\n"


@pytest.mark.parametrize(
    ("behaviour", "line"),
    [
        pytest.param(hanging, "did not answer in time", id="it hangs"),
        pytest.param(answering(http("200 OK", b"hello")), "what listens", id="it is another"),
        pytest.param(answering(http("503 x", b"No topology yet\n")), "answered 503", id="new"),
    ],
)
def test_a_daemon_in_trouble_is_not_waited_for_longer(
    tree: Path, tmp_path: Path, behaviour: object, line: str
) -> None:
    with serving(tmp_path / "s", behaviour) as path:  # type: ignore[arg-type]
        done = init(tmp_path / "to", "--timeout=1", socket=path, env={"AFFINITYD_ROOT": str(tree)})
    assert (done.status, len(done.lines)) == (0, 1)
    assert line in done.lines[0]
    assert (tmp_path / "to/gpu/7.cpulist").exists()


def test_what_the_daemon_refuses_leaves_no_plan_but_the_script(
    daemon: Daemon, tmp_path: Path
) -> None:
    done = init(tmp_path, socket=daemon.socket, env={"AFFINITYD_MODE": "best"})
    assert done.status == 0
    assert done.lines[0].startswith("affinityd init: mode: 'best' is not one of all, single")
    assert done.lines[0].endswith(f"; no plan was left in {tmp_path}: programs ask when they start")
    assert set(contents(tmp_path)) == {"run", "pinning.sh", "settings"}


def test_a_node_without_gpus_is_no_failure(tmp_path: Path) -> None:
    done = init(
        tmp_path, "--timeout=0.2", socket=tmp_path / "x", env={"AFFINITYD_MACHINE": "/nowhere"}
    )
    assert done.status == 0
    assert len(done.lines) == 2


def test_a_folder_that_takes_no_files_is_a_failure(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = init(tmp_path / "file/to", socket=daemon.socket)
    assert done.status == 1
    assert done.lines == [
        f"affinityd init: {tmp_path}/file/to/run cannot be written: Not a directory"
    ]


def test_everybody_may_read_it_whatever_the_umask(daemon: Daemon, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        init(tmp_path / "to", socket=daemon.socket)
    finally:
        os.umask(before)
    modes = {
        stat.S_IMODE(path.stat().st_mode)
        for path in [tmp_path / "to", *(tmp_path / "to").rglob("*")]
        if path.name != "run" and path.is_file()
    }
    assert modes == {0o644}
    for path in ("to", "to/gpu", "to/run"):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == 0o755


def test_done_again_it_leaves_what_holds_now(daemon: Daemon, tmp_path: Path) -> None:
    init(tmp_path, socket=daemon.socket)
    first = contents(tmp_path)
    (tmp_path / "gpu/MIG-gone.cpulist").write_text("0\n")
    (tmp_path / "gpu/7.cpulist").write_text("0\n")
    init(tmp_path, socket=daemon.socket)
    assert contents(tmp_path) == first


def test_on_a_node_of_two_vendors_it_is_the_first_one_s(tmp_path: Path) -> None:
    tree = write_tree(machine("two-vendors"), tmp_path / "machine")
    env = {"AFFINITYD_ROOT": str(tree)}
    done = init(tmp_path / "to", "--timeout=0.2", socket=tmp_path / "nobody", env=env)
    assert "the places of 1 GPU," in done.stdout


def test_what_refuses_a_container_refuses_no_node(tmp_path: Path) -> None:
    """GPU 0's node has no CPU: with `strict` there is no plan for it, but one for others."""
    tree = write_tree(made({0: "0-1", 1: "", 2: "2-3"}, gpus=[1, 0]), tmp_path / "machine")
    env = {"AFFINITYD_ROOT": str(tree), "AFFINITYD_STRICT": "true"}
    init(tmp_path / "to", "--timeout=0.2", socket=tmp_path / "nobody", env=env)
    plan = json.loads((tmp_path / "to/plan.json").read_text())
    assert [rank["locality"] for rank in plan["ranks"]] == ["remote", "local"]


def test_what_a_daemon_of_another_release_refuses_is_planned_here(
    tree: Path, tmp_path: Path
) -> None:
    refusal = http("422 Malformed", b"Malformed request: mode: 'node' is not one of all\n")
    with serving(tmp_path / "s", answering(refusal)) as path:
        done = init(tmp_path / "to", socket=path, env={"AFFINITYD_ROOT": str(tree)})
    assert done.lines == ["affinityd init: mode: 'node' is not one of all"]
    assert (tmp_path / "to/gpu/7.cpulist").read_text() == "48-63,176-191\n"


@pytest.mark.parametrize("url", ["https://affinityd:9466", "affinityd:9466", "http://x:99999"])
def test_a_variable_that_is_no_url_is_told_and_left_out(
    tree: Path, tmp_path: Path, url: str
) -> None:
    env = {"AFFINITYD_URL": url, "AFFINITYD_ROOT": str(tree)}
    done = init(tmp_path / "to", "--timeout=0.2", socket=tmp_path / "nobody", env=env)
    assert done.status == 0
    assert done.lines[0].startswith(
        f"affinityd init: AFFINITYD_URL: '{url}' is not http://HOST:PORT"
    )
    assert (tmp_path / "to/run").exists()
    assert "AFFINITYD_URL" not in (tmp_path / "to/settings").read_text()


def test_settings_that_cannot_be_read_are_told(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "conf").write_text("what is this\n")
    env = {"AFFINITYD_CONFIG": str(tmp_path / "conf"), "AFFINITYD_MODE": "exclusive"}
    done = init(tmp_path / "to", socket=daemon.socket, env=env)
    assert (done.status, len(done.lines)) == (0, 1)
    assert (tmp_path / "to/gpu/7.cpulist").read_text() == "48-55,176-183\n"


def test_two_addresses_that_answer_nothing_take_no_longer_than_one(
    tree: Path, tmp_path: Path
) -> None:
    began = time.monotonic()
    with serving(tmp_path / "s", hanging) as path, socket.create_server(("127.0.0.1", 0)) as mute:
        words = ["--timeout=6", f"--url=http://127.0.0.1:{mute.getsockname()[1]}"]
        init(tmp_path / "to", *words, socket=path, env={"AFFINITYD_ROOT": str(tree)})
    assert time.monotonic() - began < 2 * 6


def test_a_pod_that_is_deleted_ends_its_init_container_at_once(tmp_path: Path) -> None:
    """As pid 1 of a namespace of its own, as a container's first process is."""
    words = [sys.executable, "-m", "affinityd", "init", f"--to={tmp_path}/to", "--timeout=30"]
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare is refused here")
    env = {**os.environ, "AFFINITYD_SOCKET": str(tmp_path / "nobody")}
    with subprocess.Popen([*alone, *words], env=env, stderr=subprocess.DEVNULL) as outer:
        eventually((tmp_path / "to/settings").exists, "it waits for a daemon")
        (inner,) = children(outer.pid)
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(5) == 143


def children(pid: int) -> list[int]:
    return [int(it) for it in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def plan_with(names: list[str], **more: object) -> bytes:
    """Return a plan of one GPU that has these names, in JSON."""
    done = affinityd("plan", "--machine=dgx-a100", "--gpus=0", "--whose=node", "--format=json")
    plan = json.loads(done.stdout)
    plan["ranks"][0]["gpu"]["names"] = names
    plan["ranks"][0].update(more)
    return json.dumps(plan).encode()


def test_a_daemon_s_names_stay_in_their_folder(tmp_path: Path) -> None:
    plan = plan_with(["../../x", "minor:../7", "/etc/y"])
    with serving(tmp_path / "s", answering(http("200 OK", plan))) as path:
        init(tmp_path / "deep/to", socket=path)
    assert {it.name for it in tmp_path.iterdir()} == {"s", "deep"}
    assert {it.name for it in (tmp_path / "deep/to/gpu").iterdir()} == {
        f"{name}.{suffix}"
        for name in (".._.._x", ".._7", "_etc_y")
        for suffix in ("cpulist", "locality")
    }


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param(lambda: plan_with(["a\0b"]), id="a NUL"),
        pytest.param(lambda: plan_with(["\x1b[2J"]), id="what a terminal obeys"),
        pytest.param(lambda: plan_with(["minor:0"], cpulist="x"), id="no CPUs"),
        pytest.param(lambda: b"{}", id="too short"),
        pytest.param(lambda: b"[" * 70_000, id="no document"),
    ],
)
def test_what_is_no_plan_is_not_written(
    tree: Path, tmp_path: Path, plan: Callable[[], bytes]
) -> None:
    with serving(tmp_path / "s", answering(http("200 OK", plan()))) as path:
        env = {"AFFINITYD_ROOT": str(tree)}
        done = init(tmp_path / "to", "--timeout=0.3", socket=path, env=env)
    assert (done.status, len(done.lines)) == (0, 1)
    assert "is no affinityd" in done.lines[0]
    assert (tmp_path / "to/gpu/7.cpulist").read_text() == "48-63,176-191\n"


def test_a_plan_that_cannot_be_written_keeps_no_pod_from_starting(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").mkdir()
    done = init(tmp_path, socket=daemon.socket)
    assert done.status == 0
    reason = f"{tmp_path}/plan.json cannot be written: Is a directory"
    assert done.lines == [
        f"affinityd init: {reason}; no plan was left in {tmp_path}: programs ask when they start"
    ]


def test_a_folder_without_a_name_is_refused() -> None:
    assert init(Path(), "--to=").lines == [
        "affinityd init: to is empty; name a folder, like /affinity"
    ]
