"""Settings of all tests."""

import asyncio
import inspect
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests.support.daemons import PATIENCE, Daemon, running
from tests.support.own_mounts import hide_the_machines_own

#: The trees that tests write are in memory, as a kernel's files are.
MEMORY = Path("/dev/shm")  # noqa: S108 - pytest makes a folder of its own in it
if os.access(MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", os.fspath(MEMORY))

hide_the_machines_own()


# Programs that tests start keep their bytecode, so that later starts need not compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile(
    "quick",
    max_examples=30,
    deadline=None,  # a busy machine is no failure
    derandomize=True,  # the same examples on every machine, also in CI
)
settings.register_profile(
    "long", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add an option that selects the nightly tests, which a change does not need."""
    parser.addoption("--nightly", action="store_true", help="run the nightly tests")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    test = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, PATIENCE))
    return True


class Scheduling(LoadFileScheduling):  # type: ignore[misc] # xdist ships no types
    """Gives a worker whole files, or all files that share one machine, image or cluster."""

    def _split_scope(self, nodeid: str) -> str:
        file = str(super()._split_scope(nodeid))
        return next(
            (it for it in ("/vm/", "/test_containers_", "/kubernetes/") if it in file), file
        )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    """Schedule by files if several workers are requested."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """End with a line that says which tests did not run, and why."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        skipped: Counter[str] = Counter()
        for report in reporter.stats.get("skipped", []):
            _, _, reason = report.longrepr
            skipped[reason.removeprefix("Skipped: ")] += 1
        reasons = [f"{count} ({reason})" for reason, count in skipped.most_common()]
        reporter.write_line(f"\nTests that were not run: {', '.join(reasons) or 'none'}")


@pytest.fixture(scope="module")
def tiny_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Run a daemon whose plans can be applied on this machine."""
    # Imported here: a machine with one CPU runs the other tests.
    from tests.support.tiny import tiny_tree  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("tiny")
    with running(folder, "--root", str(tiny_tree(folder / "machine"))) as daemon:
        yield daemon


@pytest.fixture
def here(tiny_daemon: Daemon) -> Mapping[str, str]:
    """Return an environment whose only settings lead to `tiny_daemon`."""
    socket = str(tiny_daemon.socket)
    return {"AFFINITYD_SOCKET": socket, "AFFINITYD_CONFIG": "/nonexistent"}
