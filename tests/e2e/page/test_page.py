"""The node's page in a real browser: each control, by mouse and by keyboard, and its effect."""

import shlex
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import parse_qsl
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, BrowserContext

from affinityd.cpuset import parse_list
from tests.e2e.page.conftest import HOSTILE, MACHINES, Node, Tab
from tests.support.daemons import eventually, free_port, running
from tests.support.machines.facts import machine
from tests.support.machines.sysfs_tree import write_tree
from tests.support.tiny import printed

SVG = "{http://www.w3.org/2000/svg}"
Opens = Callable[..., Tab]


@pytest.mark.parametrize("name", MACHINES)
def test_the_picture_has_the_machine_and_the_plan_of_all_gpus(name: str, open_tab: Opens) -> None:
    tab = open_tab(name)
    topology = tab.node.daemon.get("/topology").json["topology"]
    drawn = tab.drawn()
    assert drawn.keys() == parse_list(topology["possible"])
    assert "reserved" in drawn[0]
    tab.comes_to_show("")
    assert tab.errors == []
    assert {url.rpartition("/")[0].split("?")[0] for url in tab.requests} == {tab.node.origin}


CONTROLS = [
    ("mode", "unique_contiguous", "mode=unique_contiguous"),
    ("balanced", "false", "balanced=false"),
    ("gpus", "5,0", "gpus=5,0"),
    ("cpuset", "16-31,48-52", "cpuset=16-31,48-52"),
    ("more", "ranks=4&max_physical_cores=2", "ranks=4&max_physical_cores=2"),
]


def has_question(tab: Tab, query: str) -> bool:
    return parse_qsl(tab.query.removeprefix("?")) == parse_qsl(query)


def test_each_control_requests_another_plan_and_changes_the_address(open_tab: Opens) -> None:
    tab = open_tab()
    for name, value, query in CONTROLS:
        control = tab.page.locator(f"[name={name}]")
        is_choice = control.evaluate("it => it.tagName") == "SELECT"
        (control.select_option if is_choice else control.fill)(value)
        tab.comes_to_show(query)
        eventually(partial(has_question, tab, query), "the address has the question")
        tab.page.get_by_role("button", name="Reset").click()
        tab.comes_to_show("")
        eventually(lambda: tab.query == "", "the address has no question")


@pytest.mark.parametrize(
    "query",
    [
        "ranks=24&mode=node",
        "gpus=0,1,4&cpuset=8-60,112-200&multithreading=single_logical",
    ],
)
def test_the_page_marks_a_plan_as_the_daemon_s_picture_does(query: str, open_tab: Opens) -> None:
    tab = open_tab(query=f"?{query}")
    root = ET.fromstring(tab.node.daemon.get(f"/topology.svg?{query}").text)  # noqa: S314
    groups = [it for it in root.iter(f"{SVG}g") if "data-name" in it.attrib]
    cpus = {it.attrib["data-name"]: {*it.attrib["class"].split()} for it in groups}
    marked = {int(cpu): words - {"cpu"} for cpu, words in cpus.items() if "cpu" in words}
    labels = [it.text or "" for it in root.iter(f"{SVG}text") if it.get("class") == "rank"]
    eventually(lambda: tab.drawn() == marked, "its CPUs have the same classes")
    assert tab.picture.locator(".rank").all_text_contents() == labels
    assert len({*labels}) > 1


def test_gpus_are_chosen_on_the_picture_in_the_order_of_their_ranks(open_tab: Opens) -> None:
    tab = open_tab()
    for number in (3, 0, 5, 3):  # the second click takes GPU 3 out again
        tab.picture.locator(f'.gpu[data-name="nvidia:{number}"]').click()
    tab.comes_to_show("gpus=0,5")
    assert tab.page.get_by_label("GPU 5", exact=True).is_checked()
    assert not tab.page.get_by_label("GPU 3", exact=True).is_checked()
    assert "gpus=0%2C5" in tab.query


def test_every_control_can_be_reached_and_used_by_keyboard(open_tab: Opens) -> None:
    tab = open_tab()
    keyboard = tab.page.keyboard
    names = []
    while not tab.page.evaluate("document.activeElement.closest('footer')"):
        keyboard.press("Tab")
        focused = "document.activeElement.name || document.activeElement.tagName"
        names.append(tab.page.evaluate(focused))
        if names[-1] == "mode":
            keyboard.type("node")
        if tab.page.evaluate("document.activeElement.dataset.gpu") == "nvidia:2":
            keyboard.press("Space")
    assert {"gpus", "cpuset", "visible", "more", "mode", "share", "compare", "running"} <= {*names}
    assert {"A", "BUTTON", "SUMMARY", "DIV"} <= {*names}
    tab.comes_to_show("gpus=2&mode=node")


def test_two_plans_are_compared_and_differences_are_marked(open_tab: Opens) -> None:
    tab = open_tab(query="?gpus=0,1&compare=on&b.mode=unique_contiguous")
    tab.comes_to_show("gpus=0,1")
    tab.comes_to_show("gpus=0,1&mode=unique_contiguous", view=1)
    (near,) = {it["cpulist"] for it in tab.plan("gpus=0,1&mode=node")["ranks"]}
    differ = parse_list(near)
    for view in (0, 1):
        assert {cpu for cpu, words in tab.drawn(view).items() if "differs" in words} == differ
    tab.page.locator('[name="b.mode"]').select_option("node")
    eventually(lambda: "differs" not in set().union(*tab.drawn().values()), "they are the same")
    tab.page.locator("[name=compare]").uncheck()
    eventually(lambda: len(tab.views) == 1, "there is one plan again")


def test_each_command_for_a_rank_gives_the_rank_its_cpus(open_tab: Opens) -> None:
    tab = open_tab(query="?gpus=1,0&mode=unique_interleaved&cpuset=40-63")
    tab.comes_to_show("gpus=1,0&mode=unique_interleaved&cpuset=40-63")
    tab.page.get_by_role("button", name="reasons and commands of rank 1").click()
    curl, taskset, numactl, exec_ = tab.page.locator("td[colspan] code:visible").all_inner_texts()
    cpulist = tab.cpulists()[1]
    assert printed(*shlex.split(curl)) == f"{cpulist}\n"
    assert taskset == f"taskset -c {cpulist} COMMAND"
    assert numactl == f"numactl --physcpubind={cpulist} --localalloc COMMAND"
    words = shlex.split(exec_)
    assert words[:2] == ["affinityd", "exec"]
    options = words[2 : words.index("--")]
    command = [sys.executable, "-m", "affinityd", "plan", "--machine", "dgx-a100"]
    options += ["--reserved-cpus", "0", "--format", "cpulist"]
    assert printed(*command, *options) == f"{cpulist}\n"


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?gpus=99", "no GPU 99"),
        (f"?mode={HOSTILE}", "<img"),
        (f"?{HOSTILE}=1", "<img"),
        ("?more=x", "'more' is no parameter"),
        ("?gpus=%27;alert(1)//", "alert"),
    ],
)
def test_a_refusal_shows_the_daemon_s_message(query: str, says: str, open_tab: Opens) -> None:
    tab = open_tab(query=query)
    assert says in tab.answers[0]
    assert tab.colors() == {}
    assert tab.page.title().startswith("dgx-a100")
    assert tab.page.locator("img").count() == 0


def test_the_page_says_that_the_machine_changed(context: BrowserContext, tmp_path: Path) -> None:
    root, port = write_tree(machine("cloud-vm"), tmp_path / "machine"), free_port()
    with running(tmp_path, "--root", str(root), listen=f"127.0.0.1:{port}") as daemon:
        tab = Tab.open(context, Node(daemon, f"http://127.0.0.1:{port}"))
        assert not tab.page.locator("#news").is_visible()
        (root / "sys/devices/system/cpu/online").write_text("0-5\n")
        daemon.signal(signal.SIGHUP)
        eventually(lambda: daemon.get("/topology").json["generation"] == 2, "it was read again")
        tab.page.locator("[name=mode]").select_option("node")
        eventually(tab.page.locator("#news").is_visible, "the page says so")
        tab.page.reload()
        eventually(lambda: tab.drawn().keys() == set(range(8)), "all are drawn")
        assert tab.picture.locator(".offline .cpu").count() == 2
        assert not tab.page.locator("#news").is_visible()


#: A query, the query in the page's address after that, and the parameter that is refused, if any.
ADDRESSES = [
    ("?job=3%2C4&gpus=3", "gpus=3&job=3%2C4", ""),
    ("?job=3%2B4%25%26%3D", "job=3%2B4%25%26%3D", "job"),
    ("?gpus=0&gpus=1", "gpus=0&gpus=1", "gpus"),
    ("?mode=node&balanced=true", "", ""),
    ("?compare=yes", "compare=yes", "compare"),
    ("?more=gpus%3D1", "more=gpus%3D1", "more"),
]


@pytest.mark.parametrize(("query", "address", "refused"), ADDRESSES)
def test_an_address_with_a_query_restores_the_plan(
    query: str, address: str, refused: str, open_tab: Opens
) -> None:
    tab = open_tab(query=query)
    assert tab.query.removeprefix("?") == address
    if refused:
        assert refused in tab.answers[0]
        assert tab.colors() == {}
    else:
        tab.comes_to_show(address)


def test_on_a_phone_the_picture_comes_before_options(
    browser: Browser, nodes: Callable[[str], Node]
) -> None:
    context = browser.new_context(
        viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True
    )
    tab = Tab.open(context, nodes("dgx-a100"))
    box = tab.page.locator(".scroll:has(> .picture)").bounding_box()
    view = tab.page.locator("#whatif").bounding_box()
    assert box is not None
    assert view is not None
    assert box["y"] - view["y"] < 844 / 2
    assert 0 <= box["x"] <= 390 - box["width"]
    assert not tab.page.locator("[name=mode]").is_visible()
    tab.picture.locator('.gpu[data-name="nvidia:6"]').tap()
    tab.comes_to_show("gpus=6")
    assert not Tab.open(context, tab.node, "?gpus=1").page.locator("[name=mode]").is_visible()
    assert Tab.open(context, tab.node, "?mode=exclusive").page.locator("[name=mode]").is_visible()
    context.close()
