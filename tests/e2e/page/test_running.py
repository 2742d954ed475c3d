"""What runs now, on the page: processes over a forwarded socket, counts over TCP."""

from __future__ import annotations

import os
import shutil
import socket
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext

from tests.e2e.page.conftest import Node, Tab
from tests.support.children import sleeping
from tests.support.cpusets import cgroup, needs_cpuset, step_parts
from tests.support.daemons import eventually, free_port
from tests.support.enforcing_node import EnforcingNode, scanning
from tests.support.tiny import FAR, NEAR

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts, and makes cgroups"),
    needs_cpuset,
]
JOB = 4711


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(port: int) -> Iterator[EnforcingNode]:
    with scanning(listen=f"127.0.0.1:{port}") as node:
        yield node


@pytest.fixture
def pid(node: EnforcingNode) -> Iterator[int]:
    with cgroup(*step_parts(JOB)) as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        subprocess.run(["taskset", "-cp", FAR, str(child.pid)], check=True, capture_output=True)
        node.say({0: [child.pid]})
        eventually(lambda: node.audit()["gpus"][0]["processes"]["remote"] == 1, "it is seen")
        yield child.pid


def words(tab: Tab) -> list[str]:
    return list(tab.page.locator("#running tbody td").all_inner_texts())


def test_a_user_sees_far_processes(node: EnforcingNode, pid: int, context: BrowserContext) -> None:
    with forwarded(node.daemon.socket) as port:
        tab = Tab.open(context, Node(node.daemon, f"http://127.0.0.1:{port}"), "?running=on")
        eventually(lambda: str(pid) in words(tab), "it is listed")
        assert {f"slurm {JOB}", "remote", FAR} <= {*words(tab)}
        eventually(lambda: {"runs", "far"} <= tab.drawn()[int(FAR)], "it is drawn")
        assert "runs" not in tab.drawn()[int(NEAR)]
        gpu = tab.picture.locator('.gpu[data-name="nvidia:0"]')
        assert gpu.locator(".job").text_content() == f"slurm {JOB}"
        assert "far" in (gpu.get_attribute("class") or "")
        frame = tab.picture.locator(f'.cpu[data-name="{FAR}"] > rect')
        assert frame.evaluate("it => getComputedStyle(it).stroke") == "rgb(176, 0, 32)"
        # It is moved near its GPU: the next scan, and so the page, shows that.
        subprocess.run(["taskset", "-cp", NEAR, str(pid)], check=True, capture_output=True)
        eventually(lambda: "local" in words(tab), "it is near")
        assert "far" not in set().union(*tab.drawn().values())
        tab.page.locator("[name=running]").uncheck()
        eventually(lambda: "runs" not in set().union(*tab.drawn().values()), "none is drawn")
        assert not tab.page.locator("#running").is_visible()


def test_a_hostile_name_is_shown_as_text(
    node: EnforcingNode, context: BrowserContext, tmp_path: Path
) -> None:
    program = shutil.copy("/bin/sleep", tmp_path / "<b>\u202eab\x1b[1")
    with forwarded(node.daemon.socket) as port, subprocess.Popen([program, "999"]) as child:
        try:
            node.say({0: [child.pid]})
            tab = Tab.open(
                context, Node(node.daemon, f"http://127.0.0.1:{port}"), "?running=on&gpus=0"
            )
            eventually(lambda: str(child.pid) in words(tab), "it is listed")
            assert "<b>?ab?[1" in words(tab)
            assert tab.errors == []
        finally:
            child.kill()


def test_without_processes_none_is_drawn(node: EnforcingNode, context: BrowserContext) -> None:
    node.say({})
    eventually(lambda: node.audit()["processes"] == [], "there are none")
    answer = "#running .answer"
    with forwarded(node.daemon.socket) as port:
        tab = Tab.open(context, Node(node.daemon, f"http://127.0.0.1:{port}"), "?running=on")
        text = tab.page.locator(answer).inner_text
        eventually(lambda: "none uses a GPU" in text(), "that is said")
        assert tab.page.locator("#scanned").is_visible()
        tab.page.route("**/audit", lambda route: route.abort())
        eventually(lambda: text() == "The daemon does not answer.", "that is said, too")
        assert not tab.page.locator("#scanned").is_visible()


@pytest.mark.usefixtures("pid")
def test_over_tcp_there_are_counts(node: EnforcingNode, port: int, context: BrowserContext) -> None:
    tab = Tab.open(context, Node(node.daemon, f"http://127.0.0.1:{port}"), "?running=on")
    eventually(lambda: words(tab)[:6] == ["0", "0", "0", "1", "0", "0"], "one is remote")
    assert "no process is named" in tab.page.locator("#running .answer").inner_text()
    how = tab.page.locator("#see_more").inner_text()
    assert f"ssh -N -L 127.0.0.1:9465:{node.daemon.socket} vm" in how
    gpu = tab.picture.locator('.gpu[data-name="nvidia:0"]')
    assert gpu.locator(".job").text_content() == "1 proc."
    assert "far" in (gpu.get_attribute("class") or "")


# A port that leads to a unix socket, as `ssh -L` makes one.


@contextmanager
def forwarded(path: Path) -> Iterator[int]:

    class Connection(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
                daemon.connect(str(path))
                back = threading.Thread(target=copy, args=(daemon, self.request), daemon=True)
                back.start()
                copy(self.request, daemon)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Connection) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError), source.makefile("rb", buffering=0) as data, to.makefile("wb", 0) as out:
        shutil.copyfileobj(data, out)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)
