"""With every numbering of GPUs, a process's GPU is right, or is reported as unknown."""

from __future__ import annotations

from itertools import chain

from affinityd.errors import UnsatisfiableError
from tests.support.asking import try_to_ask
from tests.support.numberings import Case, held_out, numberings, outcome


def test_a_process_gets_the_gpu_that_its_driver_means_or_none() -> None:
    wrong = list(filter(None, map(_wrong, chain(numberings(), held_out()))))
    assert wrong == []


def _wrong(case: Case) -> tuple[str, str, frozenset[str]] | None:
    """Return the case and its outcome if the outcome is wrong."""
    granted = {} if case.files is None else {"granted": ",".join(case.granted)}
    parameters = {"mode": "node", "AFFINITYD_CPUS": "none", **granted, **case.environ}
    reply = try_to_ask(case.topology, **parameters)
    if isinstance(reply, UnsatisfiableError):
        assert str(reply).startswith("it is not known which GPU the task uses: "), case
    found = outcome(reply)
    return None if found in case.right else (case.name, found, case.right)
