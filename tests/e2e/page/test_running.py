"""Running processes on the page: by name over a forwarded socket, only counted over TCP."""

import signal
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext

from tests.e2e.page.conftest import AUDIT, Node, Tab
from tests.support.children import sleeping
from tests.support.cpusets import cgroup, needs_cpuset, step_parts
from tests.support.daemons import eventually, free_port
from tests.support.scanning_node import ScanningNode, scanning
from tests.support.tiny import FAR, NEAR

pytestmark = needs_cpuset
JOB = 4711


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def node(port: int) -> Iterator[ScanningNode]:
    with scanning(listen=f"127.0.0.1:{port}") as node:
        yield node


@pytest.fixture
def pid(node: ScanningNode) -> Iterator[int]:
    with cgroup(*step_parts(JOB)) as folder, sleeping() as child:
        (folder / "cgroup.procs").write_text(str(child.pid))
        subprocess.run(["taskset", "-cp", FAR, str(child.pid)], check=True, capture_output=True)
        node.say({0: [child.pid]})
        eventually(lambda: node.audit()["gpus"][0]["processes"]["remote"] == 1, "it is seen")
        yield child.pid


def words(tab: Tab) -> list[str]:
    return list(tab.page.locator("#processes tbody td").all_inner_texts())


def text(tab: Tab, selector: str) -> str:
    return " ".join(tab.page.locator(selector).all_inner_texts())


def test_a_user_sees_far_processes(
    node: ScanningNode, pid: int, port: int, context: BrowserContext
) -> None:
    # As over a port that is forwarded to the socket: the daemon knows the user.
    context.route(AUDIT, lambda route: route.fulfill(body=node.daemon.get("/audit").body))
    tab = Tab.open(context, Node(node.daemon, f"http://127.0.0.1:{port}"))
    eventually(lambda: str(pid) in words(tab), "it is listed")
    assert {f"slurm {JOB}", "remote, mask, orphan", FAR} <= {*words(tab)}  # no slurmd runs here
    assert "GPU 0 is used from far away" in text(tab, "#findings .remote")
    assert "runs" not in tab.drawn()[int(FAR)]
    tab.page.get_by_label("show processes on the picture").check()
    eventually(lambda: {"runs", "far"} <= tab.drawn()[int(FAR)], "it is drawn")
    assert "runs" not in tab.drawn()[int(NEAR)]
    gpu = tab.picture.locator('.gpu[data-name="nvidia:0"]')
    assert gpu.locator(".job").text_content() == f"slurm {JOB}"
    assert "far" in (gpu.get_attribute("class") or "")
    # The process is moved near its GPU: the next scan, and so the page, shows it there.
    subprocess.run(["taskset", "-cp", NEAR, str(pid)], check=True, capture_output=True)
    eventually(lambda: "local, orphan" in words(tab), "it is near")
    assert "far" not in set().union(*tab.drawn().values())
    tab.page.locator("[name=running]").uncheck()
    eventually(lambda: "runs" not in set().union(*tab.drawn().values()), "none is drawn")
    assert tab.errors == []


@pytest.mark.usefixtures("pid")
def test_tcp_clients_see_counts(node: ScanningNode, port: int, context: BrowserContext) -> None:
    tab = Tab.open(context, Node(node.daemon, f"http://127.0.0.1:{port}"), "?running=on")
    eventually(lambda: "1 remote; cause: 1 mask" in text(tab, ".card.remote"), "one is remote")
    assert "GPU 0 is used from far away" in text(tab, "#findings")
    assert text(tab, "#findings code") == ""
    assert text(tab, "#now").count("ssh -N -L") == 1
    assert not tab.page.locator("#processes").is_visible()
    assert text(tab, "#now .answer") == "No process is named here."
    how = tab.page.locator("#see_more").inner_text()
    assert f"ssh -N -L 127.0.0.1:9465:{node.daemon.socket} vm" in how
    gpu = tab.picture.locator('.gpu[data-name="nvidia:0"]')
    assert gpu.locator(".job").text_content() == "1 proc."
    assert "far" in (gpu.get_attribute("class") or "")


def test_a_daemon_that_hangs_or_is_replaced_is_reported(context: BrowserContext) -> None:
    port = free_port()
    with scanning(listen=f"127.0.0.1:{port}") as first:
        tab = Tab.open(context, Node(first.daemon, f"http://127.0.0.1:{port}"))
        eventually(lambda: text(tab, "#findings").lower() == "no process uses a gpu", "it is idle")
        banner = tab.page.locator("#banner")
        assert not banner.is_visible()
        first.daemon.signal(signal.SIGSTOP)
        eventually(banner.is_visible, "the page says that the daemon hangs")
        assert "The daemon does not answer." in banner.inner_text()
        assert text(tab, ".age").startswith("OLD: scanned ")
        assert tab.page.locator(".card").count() == 4, "the last state stays"
        first.daemon.signal(signal.SIGCONT)
        eventually(banner.is_hidden, "it answers again")
    eventually(banner.is_visible, "the page says that it has ended")
    tab.page.locator("[name=scope]").select_option("socket")
    eventually(lambda: tab.answers == ["The daemon does not answer."], "no plan, either")
    with scanning(listen=f"127.0.0.1:{port}"):
        eventually(banner.is_hidden, "the next one answers")
        eventually(lambda: "scope=socket" in tab.answers[0], "the plan is asked again")
        assert not text(tab, ".age").startswith("OLD")
        assert not tab.page.locator("#other_node").is_visible()


def test_the_same_scan_is_not_sent_twice(node: ScanningNode) -> None:
    def is_known() -> bool:
        tag = node.daemon.get("/audit").headers["etag"]
        reply = node.daemon.get("/audit", **{"if-none-match": tag})
        return (reply.status, reply.body) == (304, b"")

    eventually(is_known, "it is asked twice between two scans")
    assert node.daemon.get("/audit", **{"if-none-match": '"older"'}).status == 200
