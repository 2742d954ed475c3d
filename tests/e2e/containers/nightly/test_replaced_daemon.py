"""Pods that start while their node's daemon is replaced, again and again."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.containers import rig
from tests.e2e.containers.test_containers_pods import RUN, SOCKET, Pod
from tests.support.tiny import CPUS, LOOK, Ended, tiny_tree


def test_pods_start_while_the_daemon_is_replaced(tmp_path: Path) -> None:
    """Every one of them runs, and where it was put, it is beside its GPU."""
    tree = tiny_tree(tmp_path / "machine")
    over = threading.Event()

    def replace(folder: Path) -> int:
        times = 0
        while not over.is_set():
            with rig.daemon(folder, root=tree):
                over.wait(0.3)
            times += 1
        return times

    def start(number: int) -> tuple[int, Ended]:
        gpu = number % 2
        return gpu, pod.app("debian", RUN, *LOOK, options=rig.devices(gpu))

    with rig.daemon(tmp_path / "node", root=tree) as first:
        pod = Pod(first, tmp_path / "pod", SOCKET)
        pod.init()
    with ThreadPoolExecutor(3) as pool:
        replacing = pool.submit(replace, tmp_path / "node")
        started = list(pool.map(start, range(12)))
        over.set()
        assert replacing.result() >= 2
    for gpu, done in started:
        assert done.cpus == str(CPUS[gpu])
        assert not done.stderr or "planned from /affinity/gpu" in done.stderr
