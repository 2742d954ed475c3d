"""A process that computes for some seconds, prints when that begins and ends, and ends with stdin.

spending.py KIND NUMBER SECONDS [CPU]...
"""

import hashlib
import os
import sys
import threading
import time

SHORT = 0.02  #: the CPU seconds that a short thread or child lives
IS_OVER = threading.Event()


def compute(seconds: float) -> None:
    """Use CPU time, mostly without Python's lock."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 500)


def last(end: float, cpu: int | None) -> None:
    if cpu is not None:
        os.sched_setaffinity(threading.get_native_id(), {cpu})
    while time.monotonic() < end:
        compute(SHORT)
    IS_OVER.wait()  # the kernel keeps its counters meanwhile


def start_threads(end: float) -> None:
    while time.monotonic() < end:
        thread = threading.Thread(target=compute, args=(SHORT,))
        thread.start()
        thread.join()


def start_children(end: float) -> None:
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            compute(SHORT)
            os._exit(0)
        os.waitpid(child, 0)


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    kind, number, seconds, *cpus = sys.argv[1:]
    say("begins")
    end = time.monotonic() + float(seconds)
    if kind == "children":
        start_children(end)
    for place in range(int(number)):
        if kind == "lasting":
            arguments = (end, int(cpus[place]) if cpus else None)
            threading.Thread(target=last, args=arguments, daemon=True).start()
        elif kind == "threads":
            threading.Thread(target=start_threads, args=(end,), daemon=True).start()
    time.sleep(max(0.0, end - time.monotonic()) + 10 * SHORT * int(number))
    say("over")
    sys.stdin.read()


if __name__ == "__main__":
    main()
