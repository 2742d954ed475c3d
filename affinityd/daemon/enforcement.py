"""Enforcement after each scan, and its metrics, log lines and document.

This module imports all of enforcement: a daemon that does not enforce does not import it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from affinityd import config
from affinityd.config import PREFIX
from affinityd.config.settings import PIN, Settings
from affinityd.daemon.api.documents import Documents
from affinityd.daemon.enforce_log import EnforceLog
from affinityd.daemon.metrics import enforcement
from affinityd.daemon.metrics.registry import Metrics
from affinityd.daemon.policy_document import parse
from affinityd.daemon.state.audits import PackedAudit
from affinityd.daemon.state.background import FailureLog
from affinityd.enforce.describe import render
from affinityd.enforce.enforcer import Enforced, Enforcer
from affinityd.enforce.hindrances import NodeLock, lacking
from affinityd.enforce.policy.file import FILE, PolicyFile
from affinityd.enforce.policy.model import GRANTED, NOTHING, Treatment
from affinityd.errors import NotEnforcedError
from affinityd.request.parameters import parse_request

#: Parameters of a plan that a site may set; `strict` would refuse processes that no plan helps.
SITE = (
    *("mode", "scope", "share", "multithreading", "balanced"),
    *("min_physical_cores", "max_physical_cores"),
)


class Enforcement:
    """Enforces by one scan after the other, and keeps the result of the last."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        """Log the daemon's mode, and why it cannot pin, if so."""
        why_not_pin = _why_not_pin(settings)
        self._log = EnforceLog(settings.enforce, why_not_pin())
        self._enforcer = Enforcer(
            settings.enforce,
            PolicyFile(
                settings.enforce_policy or FILE,
                parse=partial(parse, site=site(config.variables())),
                is_optional=not settings.enforce_policy,
            ),
            why_not_pin=why_not_pin,
            reserved=settings.reserved_cpus,
        )
        self._metrics = metrics
        self._failures = FailureLog("enforcement failed; its last result stays")
        self.documents: Documents[Enforced] = Documents(
            lambda enforced, viewer: render(enforced, viewer.sees),
            NotEnforcedError,
            "nothing has been enforced yet; try again in a moment",
        )

    def scanned(self, audit: PackedAudit) -> None:
        """Enforce by a new scan. Raises nothing: after any failure the next scan comes."""
        with self._failures.logged():
            found = audit.unpacked()
            enforced = self._enforcer.enforce(found.topology, found.scan)
            self.documents.update(enforced)
            self._metrics.show("enforce", lambda: enforcement.metrics(enforced))
            self._log.enforced(enforced)


def site(said: Mapping[str, str]) -> Treatment:
    """Return the defaults of a policy, by a site's AFFINITYD_* variables.

    They are those of `affinityd exec` and the TaskProlog: both then pin to the same CPUs. Raises
    InvalidRequestError.
    """
    given = {name: said[text] for name in SITE if (text := PREFIX + name.upper()) in said}
    mode = "all" if "scope" in given else "node"  # as of exec: node is one node, for any scope
    # A number of the site's is each task's, and several may share a GPU, which is a rank here.
    cpus = NOTHING if said.get(f"{PREFIX}CPUS") == NOTHING else GRANTED
    options = parse_request({"mode": mode, **given}.items()).options
    return Treatment(options, cpus)


def _why_not_pin(settings: Settings) -> Callable[[], str | None]:
    """Return a function that tells why this daemon cannot pin now; its privileges stay the same."""
    if settings.enforce != PIN:
        return lambda: None
    lacks = lacking()
    return NodeLock().acquire if lacks is None else lambda: lacks
