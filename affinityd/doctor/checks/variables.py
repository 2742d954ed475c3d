"""Whether AFFINITYD_* variables, and keys of the settings file, are known names.

Commands ignore other names silently: a job inherits many variables, and the file may have lines for
other programs.
"""

from __future__ import annotations

import difflib

from affinityd import config
from affinityd.config import settings
from affinityd.doctor.facts import ENVIRONMENT, NamedVariable, NodeFacts
from affinityd.doctor.result import CheckResults, ok, warn

#: Variables that commands, prologs and pods read, besides the settings.
READ = ("CONFIG", "CPUS", "DRAIN", "JOB_CPUS", "JOB_GPUS", "MEMORY", "NICS", "TIMEOUT", "URL")
#: Variables that affinityd sets for jobs.
WRITTEN = (
    *("ALLOWED", "CPULIST", "GPUS", "LOCALITY", "MEMORY_NODES", "NODES", "THREADS", "UNPINNED"),
    *("RDMA", "WARNINGS"),
)
#: Every name without a number in it.
NAMES = (
    "AFFINITYD",
    *(
        f"{config.PREFIX}{name.upper()}"
        for name in (*settings.NAMES, *config.PLAN_PARAMETERS, *READ, *WRITTEN)
    ),
)
RANKS = f"{config.PREFIX}RANK_"  #: of the `shell` format: AFFINITYD_RANK_0_CPULIST

#: The names by the part after the prefix, which makes all of them similar.
SHORT = {name.removeprefix(config.PREFIX): name for name in NAMES}

#: Words in variables that Kubernetes gives pods for a Service, as …_SERVICE_HOST and …_PORT.
OF_SERVICES = frozenset(("SERVICE", "PORT"))

ALIKE = 0.9  #: of difflib; names of other programs are less similar


def variables(facts: NodeFacts) -> CheckResults:
    """Judge the names of variables and of the settings file's keys, where they are of this node."""
    facts.own_daemon()
    for variable in facts.variables:
        if (near := _meant(variable)) is not None:
            yield warn(
                (
                    f"{variable.name} in {variable.where} is not a setting of affinityd, and is "
                    "ignored"
                ),
                f"did you mean {near}?" if near else "leave it out; docs/settings.md lists them",
            )
    ours = sum(variable.name in NAMES for variable in facts.variables)
    yield ok(f"each AFFINITYD_* variable, and key of {config.path()}, is a setting ({ours} set)")


def _meant(variable: NamedVariable) -> str | None:
    """Return the likely name, "" if none is near; None: it is known, or another program's."""
    name = variable.name.upper()
    if variable.name in NAMES or variable.name.startswith(RANKS):
        return None
    if name in NAMES:
        return name
    if variable.where == ENVIRONMENT and OF_SERVICES.intersection(name.split("_")):
        return None
    if variable.where != ENVIRONMENT and name in SHORT:
        return SHORT[name]
    if name.startswith(config.PREFIX):
        near = difflib.get_close_matches(name.removeprefix(config.PREFIX), SHORT, n=1)
        return SHORT[near[0]] if near else ""
    return next(iter(difflib.get_close_matches(name, NAMES, n=1, cutoff=ALIKE)), None)
