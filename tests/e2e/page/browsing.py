"""A page in a browser: what it shows, and what it has asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import BrowserContext, Locator, Page

from affinityd.cpuset import parse_list
from affinityd.picture import COLORS, color
from tests.support.daemons import Daemon, eventually

#: Returns the names and classes of each picture's CPUs.
CLASSES = """all => all.map(svg => [...svg.querySelectorAll(".cpu[data-name]")]
    .map(it => [it.dataset.name, it.getAttribute("class")]))"""


@dataclass(frozen=True)
class Node:
    daemon: Daemon
    origin: str


@dataclass
class Tab:
    """An open page; `requests` are the addresses it has asked, `errors` what its console says."""

    page: Page
    node: Node
    requests: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, context: BrowserContext, node: Node, query: str = "") -> Tab:
        tab = cls(context.new_page(), node)
        tab.page.on("request", lambda event: tab.requests.append(event.url))
        tab.page.on(
            "console",
            lambda event: tab.errors.append(event.text) if event.type == "error" else None,
        )
        tab.page.on("pageerror", lambda event: tab.errors.append(str(event)))
        tab.page.goto(f"{node.origin}/{query}")
        eventually(lambda: tab.answers[0], "the page has its first answer")
        return tab

    @property
    def views(self) -> list[Locator]:
        return list(self.page.locator(".view").all())

    @property
    def answers(self) -> list[str]:
        return [it.locator(".answer").inner_text() for it in self.views]

    @property
    def query(self) -> str:
        return str(self.page.evaluate("location.search"))

    @property
    def picture(self) -> Locator:
        """The picture of the first view that is shown: there are a wide one and a narrow one."""
        return self.page.locator("svg.wide:visible, svg.narrow:visible").first

    def drawn(self, view: int = 0) -> dict[int, set[str]]:
        """Return each CPU's classes in a view's pictures, which are the same in both of them."""
        wide, narrow = map(dict, self.views[view].locator("svg[role=img]").evaluate_all(CLASSES))
        assert wide == narrow
        return {int(name): {*classes.split()} - {"cpu"} for name, classes in wide.items()}

    def colors(self, view: int = 0) -> dict[int, str]:
        every = {color(rank) for rank in range(COLORS)}
        drawn = self.drawn(view).items()
        return {cpu: (words & every).pop() for cpu, words in drawn if words & every}

    def cpulists(self, view: int = 0) -> list[str]:
        return list(self.views[view].locator("td.list code").all_inner_texts())

    def plan(self, query: str) -> Any:  # noqa: ANN401 - a document
        return self.page.request.get(f"{self.node.origin}/plan?{query}").json()

    def shows(self, query: str, view: int = 0) -> bool:
        ranks = self.plan(query)["ranks"]
        colors = {cpu: color(it["rank"]) for it in ranks[::-1] for cpu in parse_list(it["cpulist"])}
        return (self.colors(view), self.cpulists(view)) == (colors, [it["cpulist"] for it in ranks])

    def comes_to_show(self, query: str, view: int = 0) -> None:
        eventually(lambda: self.shows(query, view), f"it shows {query}")
