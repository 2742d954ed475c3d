"""The daemon's life: start, readings, signals, end. Real processes, real sockets."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from affinityd.cpuset import parse_list
from affinityd.topology import node_file as nodefile
from tests.support.daemons import PATIENCE, UnixConnection, eventually, running, spawn
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.paths import REPOSITORY
from tests.support.ports import free_port

ONLINE = "sys/devices/system/cpu/online"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a DGX A100's files, to be changed while a daemon reads them."""
    return write_tree(machine("dgx-a100"), tmp_path / "root")


def test_sigterm_ends_it_well_and_leaves_no_socket_but_the_node_file(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "mi250x") as daemon:
        assert daemon.stop() == 0
        assert not daemon.socket.exists()
        assert nodefile.read(daemon.socket.with_name("node.json")).topology == machine("mi250x")


def test_the_socket_is_for_everybody_whatever_the_umask_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = os.umask(0o077)
    try:
        daemon = spawn(tmp_path, "--machine", "mi250x", "--socket", str(folder / "s"))
    finally:
        os.umask(before)
    eventually((folder / "node.json").exists, "the node file is there")
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o666
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "node.json").stat().st_mode) == 0o644
    assert daemon.stop() == 0


def test_a_stranger_on_the_socket_is_left_alone_and_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(os.fspath(tmp_path / "affinityd.sock"))
        stranger.listen()
        daemon = spawn(tmp_path, "--machine", "dgx-h100")
        assert daemon.process.wait(PATIENCE) == 1
        assert f"process {os.getpid()} listens there already" in daemon.complaints[-1]
        assert (tmp_path / "affinityd.sock").exists()


def test_tcp_gives_the_same_answers(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, "--machine", "dgx-h100", listen=f"127.0.0.1:{port}") as daemon:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        connection.request("GET", "/plan?gpus=0")
        assert connection.getresponse().read() == daemon.get("/plan?gpus=0").body
        connection.close()


def test_the_service_manager_hears_that_it_is_ready_and_that_it_stops(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(os.fspath(tmp_path / "notify"))
        manager.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": os.fspath(tmp_path / "notify")}
        daemon = spawn(tmp_path, "--machine", "dgx-h100", env=environment)
        assert manager.recv(4096).startswith(b"READY=1\nSTATUS=dgx-h100: 224 CPUs")
        assert daemon.get("/readyz").status == 200
        daemon.signal(signal.SIGTERM)
        assert manager.recv(4096) == b"STOPPING=1"
        assert daemon.process.wait(PATIENCE) == 0


def test_a_cpu_that_went_offline_is_in_no_answer_not_even_a_remembered_one(
    tmp_path: Path, tree: Path
) -> None:
    with running(tmp_path, "--root", str(tree)) as daemon:
        query = "gpus=0&mode=node"
        assert [daemon.plan(query)["cpulist"] for _ in range(2)] == ["48-63,176-191"] * 2
        (tree / ONLINE).write_text("0-47,50-255\n")
        assert daemon.plan(query)["cpulist"] == "50-63,176-191"
        assert daemon.plan(query)["generation"] == 2
        online = parse_list("0-47,50-255")
        eventually(
            lambda: parse_list(daemon.node_file["topology"]["online"]) == online, "it is published"
        )


def test_sighup_reads_the_topology_anew_and_a_difference_is_a_generation(
    tmp_path: Path, tree: Path
) -> None:
    with running(tmp_path, "--root", str(tree)) as daemon:
        daemon.signal(signal.SIGHUP)
        time.sleep(0.5)
        assert daemon.plan("gpus=0")["generation"] == 1
        device = tree / "sys/bus/pci/devices/0000:07:00.0"
        (device / "numa_node").write_text("6\n")
        assert daemon.plan("gpus=0")["ranks"][0]["home_node"] == 3
        daemon.signal(signal.SIGHUP)
        eventually(lambda: daemon.plan("gpus=0")["generation"] == 2, "the new reading is used")
        assert daemon.plan("gpus=0")["ranks"][0]["home_node"] == 6
        eventually(lambda: daemon.node_file["generation"] == 2, "it is published")


def test_a_driver_that_comes_is_noticed(tmp_path: Path, tree: Path) -> None:
    with running(tmp_path, "--root", str(tree)) as daemon:
        (tree / "sys/bus/pci/devices/0000:07:00.0/numa_node").write_text("6\n")
        driver = tree / "proc/driver/nvidia/version"
        driver.parent.mkdir(parents=True, exist_ok=True)
        driver.write_text("NVRM version: 999.99\n")
        eventually(lambda: daemon.plan("gpus=0")["generation"] == 2, "the driver is noticed")


@pytest.mark.parametrize("kind", ["a file", "a folder", "a link"])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "precious"
    if kind == "a folder":
        path.mkdir()
    else:
        (tmp_path / "other").write_text("data")
        path.symlink_to("other") if kind == "a link" else path.write_text("data")
    before = path.lstat()
    daemon = spawn(tmp_path, "--machine", "dgx-h100", "--socket", str(path))
    assert daemon.process.wait(PATIENCE) == 1
    assert [
        line for line in daemon.complaints if "is there and is no socket" in line
    ] == daemon.complaints
    assert path.lstat() == before


def test_a_reserved_machine_says_that_it_cannot_plan(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "mi250x", "--reserved-cpus", "0-127") as daemon:
        told = "every online CPU is reserved"
        eventually(lambda: any(told in line for line in daemon.lines), "it is told")
        assert daemon.get("/plan?gpus=0").status == 409


def test_a_notice_is_logged_once_not_at_each_reading(tmp_path: Path, tree: Path) -> None:
    with running(tmp_path, "--root", str(tree)) as daemon:
        before = [line for line in daemon.lines if line.startswith("warning:")]
        (tree / ONLINE).write_text("0-47,50-255\n")
        assert daemon.plan("gpus=0")["generation"] == 2
        eventually(lambda: "(generation 2)" in daemon.log.read_text(), "it is told")
        assert before == [line for line in daemon.lines if line.startswith("warning:")]
        assert before


def test_an_online_file_that_is_none_does_not_end_the_daemon(tmp_path: Path, tree: Path) -> None:
    (tree / ONLINE).unlink()
    (tree / ONLINE).mkdir()
    with running(tmp_path, "--root", str(tree)) as daemon:
        assert daemon.plan("gpus=0&mode=node")["cpulist"] == "48-63,176-191"


def test_many_large_answers_take_no_more_than_their_room(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-a100") as daemon:
        gpus = ",".join(["0"] * 200)

        def ask(numbers: range) -> int:
            for number in numbers:
                query = f"gpus={gpus}&mode=socket&cpuset=0-255:2&max_physical_cores={number}"
                assert daemon.get(f"/plan?{query}").status == 200
            status = Path(f"/proc/{daemon.process.pid}/status").read_text()
            return int(status.split("VmRSS:")[1].split()[0])  # kB

        first = ask(range(1, 101))
        assert ask(range(101, 301)) < first + 25_000


@pytest.mark.parametrize(
    ("arguments", "env", "line"),
    [
        (["--socket", "/"], {}, "socket: / is there and is no socket"),
        (["--socket", ""], {}, "--socket is empty; give it a value"),
        (["--machine", ""], {}, "--machine is empty; give it a value"),
        (["--listen", ".:9558"], {}, "listen: .:9558: "),
        (["--listen", "a" * 300 + ":9558"], {}, ":9558: "),
        (["--listen", "h:0065536"], {}, "is not HOST:PORT"),
        (["--listen", "192.0.2.1:9558"], {}, "192.0.2.1:9558: Cannot assign requested address"),
        ([], {"AFFINITYD_CONFIG": "/dev/zero"}, "/dev/zero cannot be read: not a regular"),
        (["--root", "/nowhere"], {}, "/nowhere"),
        (["--machine", "cray-1"], {}, "cray-1"),
        (["--root", "/", "--machine", "mi250x"], {}, "--root and --machine both name a machine"),
        (["--listen", "9465"], {}, "--listen: '9465' is not HOST:PORT"),
        (["--listen-plan", ".:9558"], {}, "listen-plan: .:9558: "),
        (["--node-name", "a\nb"], {}, "--node-name: 'a\\nb' is no node's name"),
        (["--reserved-cpus", "0-x"], {}, "--reserved-cpus: '0-x' is not a CPU number or range"),
        (["--socket", "a" * 200], {}, "AF_UNIX path too long; give another by --socket"),
        (
            [],
            {"AFFINITYD_LOG_FORMAT": "xml"},
            "AFFINITYD_LOG_FORMAT: 'xml' is neither text nor json",
        ),
        (["--sockets", "x"], {}, "unrecognized arguments: --sockets x"),
    ],
)
def test_a_setting_that_is_wrong_ends_it_with_one_line(
    tmp_path: Path, arguments: list[str], env: dict[str, str], line: str
) -> None:
    daemon = spawn(tmp_path, *arguments, env=env)
    assert daemon.process.wait(PATIENCE) in {1, 2}
    assert (len(daemon.complaints), daemon.lines) == (1, [])
    assert line in daemon.complaints[0]
    assert not daemon.socket.exists()


def test_log_lines_can_be_json(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "mi250x", "--log-format", "json") as daemon:
        records = [json.loads(line) for line in daemon.lines]
        assert {"time", "level", "logger", "message"} <= records[0].keys()
        assert any("128 CPUs" in record["message"] for record in records)
        assert daemon.complaints == []


def test_reserved_cpus_are_never_given(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "mi250x", "--reserved-cpus", "0,8,48") as daemon:
        answer = daemon.plan("gpus=0&mode=node")
        assert answer["cpulist"] == "49-63,112-127"
        assert "CPUs 48 of node 3 are reserved" in answer["ranks"][0]["reasons"]
        assert 'affinityd_cpus{state="reserved"} 3.0' in daemon.get("/metrics").text


def test_without_the_daemon_extra_serve_says_so_and_plan_works(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    python = tmp_path / "bare/bin/python"
    here = REPOSITORY

    def affinityd(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, "-m", "affinityd", *arguments],
            env={"PYTHONPATH": os.fspath(here), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )

    served = affinityd("serve", "--machine", "dgx-a100")
    assert served.returncode == 1
    assert served.stderr.count("\n") == 1
    assert "pip install '.[daemon]' in a checkout" in served.stderr
    planned = affinityd("plan", "--machine", "dgx-a100", "--gpus", "0", "--format", "cpulist")
    assert (planned.returncode, planned.stdout) == (0, "48-55,176-183\n")


def test_a_kept_connection_is_answered_again_and_again(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "dgx-h100") as daemon:
        connection = UnixConnection(daemon.socket)
        for _ in range(3):
            connection.request("GET", "/plan?gpus=all&format=cpulist")
            assert connection.getresponse().read().count(b"\n") == 8
        connection.close()


def test_the_machine_at_hand_is_called_as_it_is_told(tmp_path: Path) -> None:
    with running(tmp_path, env={"AFFINITYD_NODE_NAME": "gpu07.example.org"}) as daemon:
        assert daemon.get("/topology").json["topology"]["name"] == "gpu07.example.org"
        assert daemon.node_file["topology"]["name"] == "gpu07.example.org"
        assert daemon.get("/readyz").text == "ready: gpu07.example.org\n"


def test_a_replayed_machine_keeps_its_own_name(tmp_path: Path) -> None:
    with running(tmp_path, "--machine", "mi250x", "--node-name", "gpu07") as daemon:
        assert daemon.plan("gpus=0")["node"] == "mi250x"
