"""The page's first view: the state of the node, from documents that the test makes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext

from affinityd.audit.document import AuditDocument
from affinityd.audit.model import CpuTime
from affinityd.json_codec import dumps
from tests.e2e.page.conftest import AUDIT, HOSTILE, SIZES, Node, Tab
from tests.support.daemons import PATIENCE, eventually
from tests.support.node_states import audit, beside, far, orphan, process, several, waiting

Nodes = Callable[[str], Node]
Shows = Callable[..., Tab]
JSON = "application/json"


def answering(context: BrowserContext, document: AuditDocument) -> None:
    """Make /audit return this document from now on."""
    body = dumps(document)
    context.route(AUDIT, lambda route: route.fulfill(body=body, content_type=JSON))


@pytest.fixture
def shows(context: BrowserContext, nodes: Nodes) -> Shows:
    """Return a function that opens the page with a scan's document, by default of eight GPUs."""

    def opened(document: AuditDocument, name: str = "8-gpus") -> Tab:
        answering(context, replace(document, node=name))
        tab = Tab.open(context, nodes(name))
        eventually(lambda: tab.page.locator("#findings li").count(), "the state is shown")
        return tab

    return opened


def texts(tab: Tab, selector: str) -> list[str]:
    return [" ".join(it.split()) for it in tab.page.locator(selector).all_inner_texts()]


def rows(tab: Tab) -> list[list[str]]:
    lines = tab.page.locator("#processes tbody tr:has(td + td)").all()
    return [line.locator("td").all_inner_texts() for line in lines]


EIGHT = SIZES["8-gpus"]()


def test_the_worst_finding_is_first_with_its_remedy(shows: Shows, context: BrowserContext) -> None:
    tab = shows(audit(EIGHT, several(30, 8)))
    assert texts(tab, "#findings b") == [
        "GPU 0 is used from far away",
        "GPU 1 is held by processes that have ended, or that no job owns",
        "GPU 2 is waiting for CPUs",
    ]
    pin = f"affinityd pin --gpus {EIGHT.gpus[0].uuid} 10000"
    assert texts(tab, "#findings :is(code, .command > span)")[0] == pin
    (finding,) = texts(tab, "#findings")
    assert "ask its user" in finding
    assert "set OMP_NUM_THREADS to at most 32" in finding
    context.grant_permissions(["clipboard-read", "clipboard-write"], origin=tab.node.origin)
    tab.page.get_by_role("button", name=f"copy {pin}").first.click()
    assert tab.page.evaluate("navigator.clipboard.readText()") == pin
    assert texts(tab, ".card h3 .state") == ["remote", "orphan", "waiting", *["local"] * 4, "idle"]


def test_a_lost_gpu_comes_first_and_each_job_has_a_remedy(shows: Shows) -> None:
    document = audit(EIGHT, [far(process(9, 0)), far(process(10, 4)), process(11, 5)], lost=[3])
    hour = CpuTime(5.0, 2.75)  # of a job that has ended
    gpus = [replace(gpu, last_hour=hour) if gpu.index == 5 else gpu for gpu in document.gpus]
    tab = shows(replace(document, gpus=gpus))
    names = ["GPU 3 is lost or hung", "GPUs 0,4 are used from far away"]
    assert texts(tab, "#findings b") == names
    lost, of_jobs = texts(tab, "#findings li")
    assert lost.startswith("GPU 3 is lost or hung GPU 3: NVML: GPU is lost look for NVRM: Xid")
    pins = [f"affinityd pin --gpus {EIGHT.gpus[gpu].uuid} {pid}" for pid, gpu in ((9, 0), (10, 4))]
    assert texts(tab, "#findings code") == pins
    assert "GPU 0: process 9 (python3) of slurm 4711, user 1000: mask" in of_jobs
    assert "GPU 4: process 10 (python3) of slurm 4715, user 1001: mask" in of_jobs
    cards = texts(tab, ".card")
    assert cards[0].startswith("GPU 0 remote 87% busy, 30 GiB of 80 GiB")
    assert "55% of 5 s CPU time was far" in cards[5]
    assert texts(tab, ".card.local .bad, .card.idle .bad") == []


def test_a_card_names_the_far_job_first_with_its_cost(shows: Shows) -> None:
    near = [process(10 + number, 0) for number in range(5)]
    strange = far(process(99, 0, job=99))
    tab = shows(audit(EIGHT, [*near, strange, orphan(process(7, 1)), waiting(process(8, 2))]))
    first, second, third = texts(tab, ".card")[:3]
    assert "slurm 99, user 1000 slurm 4711, user 1000" in first
    for words in (
        "placement 5 local, 1 remote; cause: 1 mask",
        "time lost, 1 h 74% of 2.3 h CPU time was far",
        "waits, 1 h 3 s for CPUs",
        "host memory 320 GiB near, 44 GiB far, some likely pinned",
        "NIC mlx5_0 PXB",
        "last hour: remote 10 min, local 20 min, idle 18 min, no scan 12 min",
    ):
        assert words in first
    assert "orphan: its Slurm job has ended" in second
    assert "waits, 1 h 6 min for CPUs" in third
    strip = tab.page.get_by_role("img", name="last hour of GPU 0: remote 10 min")
    assert strip.locator("rect").count() == 3
    tab.page.get_by_label("show processes on the picture").check()
    label = tab.picture.locator('.gpu[data-name="nvidia:0"] .job')
    eventually(lambda: label.text_content() == "slurm 99 s…", "the far job is named first")


def test_similar_processes_share_a_row_and_rows_can_be_filtered_and_sorted(shows: Shows) -> None:
    alike = [process(100 + number, 3) for number in range(20)]
    slow = waiting(process(5, 4, "loader"))
    tab = shows(audit(EIGHT, [*alike, slow, far(process(9, 0)), beside(process(11, 6), 5)]))
    assert [row[:4] for row in rows(tab)] == [
        ["0", "9", "python3", "slurm 4711"],
        ["3", "100", "python3 +19 alike", "slurm 4714"],
        ["4", "5", "loader", "slurm 4715"],
        ["6,5", "11", "python3", "slurm 4717"],
    ]
    tab.page.get_by_role("button", name="sort by waits").click()
    assert rows(tab)[0][6] == "0.82 own_threads"
    sorted_by = tab.page.locator("th[aria-sort]")
    assert sorted_by.get_attribute("aria-sort") == "ascending"
    assert sorted_by.inner_text() == "waits ▲"
    focused = "document.activeElement.dataset.focus"
    assert tab.page.evaluate(focused) == "waits", "the focus stays where it was"
    tab.page.get_by_label("filter").fill("remote 4711")
    assert [row[1] for row in rows(tab)] == ["9"]
    tab.page.get_by_label("filter").fill("nothing")
    assert (rows(tab), texts(tab, "#processes .number")) == ([], ["0 processes in 0 rows"])
    tab.page.get_by_role("button", name="show the processes of GPU 5").click()
    assert [row[1] for row in rows(tab)] == ["11"]
    tab.page.locator("#processes select").select_option("nvidia:3")
    tab.page.get_by_role("button", name="details of python3, process 100").click()
    assert "PIDs 100, 101, 102" in texts(tab, "#processes td[colspan]")[0]


def test_opened_details_stay_open_through_scans(shows: Shows, context: BrowserContext) -> None:
    tab = shows(audit(EIGHT, several(30, 8)))
    button = tab.page.get_by_role("button", name="details of dataloader0, process 10000")
    button.click()
    answering(context, replace(audit(EIGHT, several(60, 8), age=0), node="8-gpus"))
    eventually(lambda: "60 processes" in texts(tab, "#processes .number")[0], "a scan comes")
    assert button.get_attribute("aria-expanded") == "true"
    assert tab.page.evaluate("document.activeElement.ariaLabel") == (
        "details of dataloader0, process 10000"
    )


def test_names_with_html_are_shown_as_text(shows: Shows) -> None:
    named = orphan(process(5, 0, f"\u202e{HOSTILE}\x1b[1m"), HOSTILE)
    tab = shows(replace(audit(EIGHT, [named]), notices=[HOSTILE]))
    tab.page.get_by_role("button", name="details of").click()
    assert rows(tab)[0][2] == f"?{HOSTILE}?[1m"
    for selector in ("#now .answer", ".card", "#processes td[colspan]"):
        assert HOSTILE in texts(tab, selector)[0]
    assert tab.page.locator("img").count() == 0
    assert tab.page.title().startswith("8-gpus")
    assert tab.errors == []


def test_an_old_scan_is_marked_and_its_age_grows(shows: Shows, context: BrowserContext) -> None:
    tab = shows(audit(EIGHT, several(30, 8), age=45))
    assert not tab.page.locator("#banner").is_visible()
    eventually(tab.page.locator("#banner").is_visible, "it is older than a minute")
    assert "The daemon answers, and scans no more." in texts(tab, "#banner")[0]
    assert texts(tab, ".age")[0].startswith("OLD: scanned 6")
    assert len(rows(tab)) == 13, "the last state stays"
    tab.page.evaluate("document.body.dataset.interval = 300")
    eventually(tab.page.locator("#banner").is_hidden, "the scan is recent enough again")
    tab.page.evaluate("document.body.dataset.interval = 15")
    eventually(tab.page.locator("#banner").is_visible, "old again")
    answering(context, replace(audit(EIGHT, []), node="8-gpus"))
    eventually(tab.page.locator("#banner").is_hidden, "there is a new one")
    assert texts(tab, "#findings b") == ["no process uses a GPU"]


def test_the_page_says_if_the_node_has_changed(shows: Shows, context: BrowserContext) -> None:
    tab = shows(audit(EIGHT, []))
    assert not tab.page.locator("#other_node").is_visible()
    answering(context, replace(audit(EIGHT, [], age=0), node="other"))
    eventually(tab.page.locator("#other_node").is_visible, "the page says so")
    assert "reload this page" in texts(tab, "#other_node")[0]


COMPARED = "?compare=on&b.mode=node&running=on"  #: two plans, with processes on the picture
Look = tuple[str, int, int, Literal["light", "dark"]]
LOOKS: list[Look] = [
    ("0-gpus", 0, 390, "light"),
    ("4-gpus", 30, 2560, "dark"),
    ("8-gpus", 30, 390, "dark"),
    ("64-gpus", 3000, 1440, "light"),
]


@pytest.mark.parametrize("look", LOOKS)
def test_the_page_is_accessible_and_nothing_is_cut_off(
    look: Look, browser: Browser, nodes: Nodes
) -> None:
    name, processes, width, scheme = look
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    context.set_default_timeout(1000 * PATIENCE)
    topology = SIZES[name]()
    answering(context, replace(audit(topology, several(processes, len(topology.gpus))), node=name))
    tab = Tab.open(context, nodes(name), COMPARED if name == "8-gpus" else "")
    eventually(lambda: tab.page.locator("#findings li").count(), "the state is shown")
    if name == "8-gpus":
        tab.comes_to_show("mode=node", view=1)
    tab.page.locator("details").evaluate_all("all => all.forEach(it => it.open = true)")
    closed = "button[aria-expanded=false]"
    tab.page.locator(f"#whatif {closed}").evaluate_all("all => all.map(it => it.click())")
    for button in tab.page.locator(f"#processes {closed}").all()[:2]:
        button.click()
    violations = Axe().run(tab.page).response["violations"]
    assert [(it["id"], it["impact"], it["nodes"][0]["html"][:200]) for it in violations] == []
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
    others = ".scroll:not(:has(> .picture))"  # a picture scrolls on a phone
    wider = tab.page.locator(f"{others}, .card, #findings li").evaluate_all(
        "all => all.filter(it => it.scrollWidth > it.clientWidth + 1).map(it => it.textContent)"
    )
    assert wider == []
    widths = tab.page.locator("#cards, #whatif form").evaluate_all(
        "all => all.filter(it => it.children.length).map(it => it.clientWidth)"
    )
    assert min(widths) > 0.9 * width
    context.close()


def test_a_cpu_of_several_ranks_shows_all_these_ranks(open_tab: Callable[..., Tab]) -> None:
    tab = open_tab(query="?gpus=0,1&ranks=4")
    tab.comes_to_show("gpus=0,1&ranks=4")
    cpu = tab.picture.locator('.cpu[data-name="48"]')
    stripes = cpu.locator(".shared").evaluate_all("all => all.map(it => it.classList[1])")
    assert stripes == ["r0", "r1", "r2", "r3"]
    assert cpu.locator("title").text_content() == "CPU 48: ranks 0-3"
    tab.page.locator("[name=mode]").select_option("unique_contiguous")
    eventually(lambda: cpu.locator(".shared").count() == 0, "it has one rank again")
