"""The defaults of a policy: a site's settings of plans."""

from __future__ import annotations

from collections.abc import Mapping

from affinityd.config import PREFIX
from affinityd.enforce.policy.model import GRANTED, NOTHING, Treatment
from affinityd.request.parameters import parse_request

#: Parameters of a plan that a site may set; `strict` would refuse processes that no plan helps.
SITE = (
    *("mode", "scope", "share", "multithreading", "balanced"),
    *("min_physical_cores", "max_physical_cores"),
)


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
