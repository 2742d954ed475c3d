"""Children with a deadline, which may hang or crash without harm to this process.

A function runs in a fork, so no Python starts, and the child is killed once it takes too long. This
process must have only one thread, fork(2): locks of other threads would stay locked in the child.
The child keeps no file but its pipe: while a driver holds the child in the kernel, readers of this
process's output and clients of its sockets do not wait for the child.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from affinityd import errors
from affinityd.errors import AffinityError
from affinityd.linux.files import READ_SIZE, numbered

if TYPE_CHECKING:
    from subprocess import CompletedProcess

PIPE = 3  #: the pipe's number in the child, after the three standard streams
END_PAUSE = 0.0002  #: seconds between two checks whether a child has ended
RETURNED = b"0"  #: first byte of a child's output if the function of `run` returned
RAISED = b"1"
GRACE = 1.0  #: seconds for a killed child to end
stuck: list[int] = []  #: killed children that have not ended: a driver holds them in the kernel


class ChildError(AffinityError):
    """A child that failed; the message is one line that begins with a verb."""


class Child:
    """A forked child: it writes to a pipe what a function yields, part by part."""

    def __init__(self, work: Callable[[], Iterable[bytes]], patience: float) -> None:
        """Fork the child. It exits one second after a part takes longer than `patience` seconds.

        Raises ChildError if fork(2) fails, and while an earlier child cannot be killed.
        """
        check_stuck()
        try:
            self._pipe, theirs = os.pipe()
            try:
                self.pid = os.fork()
                if self.pid == 0:
                    _be_child(work, theirs, patience)
            except OSError:
                os.close(self._pipe)
                raise
            finally:
                os.close(theirs)
        except OSError as error:
            raise ChildError(f"could not be started: {error.strerror}") from None

    def read(self, deadline: float) -> bytes:
        """Return the next bytes of the child, b"" at the end. Raises TimeoutError."""
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        if not ready.poll(max(deadline - time.monotonic(), 0.0) * 1000):
            raise TimeoutError
        return os.read(self._pipe, READ_SIZE)

    def end(self, grace: float = 0.0) -> int | None:
        """Wait `grace` seconds for the child to end, then kill it; return its `exit_status`."""
        os.close(self._pipe)
        status = self._ended(grace)
        if status is None:
            for kill in (os.killpg, os.kill):  # the child may not be a process group yet
                with suppress(ProcessLookupError):
                    kill(self.pid, signal.SIGKILL)
            status = self._ended(GRACE)
        if status is None:
            stuck.append(self.pid)
        return status

    def _ended(self, patience: float) -> int | None:
        limit = time.monotonic() + patience
        while (status := exit_status(self.pid)) is None and time.monotonic() < limit:
            time.sleep(END_PAUSE)
        return status


def run(work: Callable[[], bytes], deadline: float) -> bytes:
    """Run a function in a child, and return its result.

    `deadline` is a value of time.monotonic. Raises TimeoutError after the deadline; an
    AffinityError of the function; ChildError for its other exceptions, a crash, or no new child.
    """

    def result() -> bytes:
        try:
            return RETURNED + work()
        except Exception as error:  # noqa: BLE001 - the parent raises it
            return RAISED + f"{type(error).__name__}: {error}".encode(errors="replace")

    child = Child(lambda: [result()], max(deadline - time.monotonic(), 0.0))
    outcome = bytearray()
    grace = 0.0
    try:
        while part := child.read(deadline):
            outcome += part
        grace = GRACE
    finally:
        status = child.end(grace)
    kind = bytes(outcome[:1])
    text = bytes(outcome[1:])
    if kind == RETURNED:
        return text
    if kind != RAISED:
        raise ChildError(ending(status))
    name, _, message = text.decode(errors="replace").partition(": ")
    raised = getattr(errors, name, None)
    raise raised(message) if raised else ChildError(f"failed: {name}: {message}")


def run_program(
    command: Sequence[str], seconds: float, environ: Mapping[str, str] | None = None
) -> CompletedProcess[bytes]:
    """Run a program without input; return its status and output.

    Raises TimeoutError after `seconds`, and ChildError if the program cannot be started.
    """
    import subprocess  # noqa: PLC0415 - a rank forks its child, and does not wait for this import

    pipe = subprocess.PIPE
    try:
        child = subprocess.Popen(  # noqa: S603 - a list of words, which no shell reads
            command,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            env=environ,
            start_new_session=True,  # a process group, so that all its processes can be killed
        )
    except OSError as error:
        raise ChildError(f"cannot be run: {error.strerror}") from None
    try:
        output, complaint = child.communicate(timeout=seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        try:
            child.communicate(timeout=GRACE)
        except subprocess.TimeoutExpired:
            stuck.append(child.pid)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TimeoutError from None
    return subprocess.CompletedProcess(command, child.returncode, output, complaint)


def ending(status: int | None) -> str:
    """Describe how a failed child ended, by its status."""
    if status is None:
        return "cannot be ended: it waits in the kernel"
    return f"crashed: {signal.strsignal(-status)}" if status < 0 else "ended early"


def exit_status(pid: int) -> int | None:
    """Return a child's status, negative for a signal; None: it has not ended."""
    try:
        ended, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # SIGCHLD is ignored: the kernel has taken the status
        return 0
    return os.waitstatus_to_exitcode(status) if ended else None


def check_stuck() -> None:
    """Raise ChildError while a killed child has not ended."""
    for pid in tuple(stuck):
        if exit_status(pid) is None:
            raise ChildError(f"still hangs in an earlier query, in process {pid}")
        stuck.remove(pid)


def _be_child(work: Callable[[], Iterable[bytes]], pipe: int, patience: float) -> NoReturn:
    """Run the function in a process group of its own, write its parts to the pipe, and exit.

    No other file stays open, and the exit handlers of the parent do not run.
    """
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGALRM])
        signal.setitimer(signal.ITIMER_REAL, patience + GRACE)
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        kept = os.dup(pipe)  # a number above those that are overwritten here
        last = numbered("/proc/self/fd")[-1]  # RLIMIT_NOFILE may be lower, or a billion
        for stream in range(PIPE):
            os.dup2(nowhere, stream)
        os.dup2(kept, PIPE)
        os.closerange(PIPE + 1, last + 1)
        for part in work():
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(PIPE, rest) :]
            signal.setitimer(signal.ITIMER_REAL, patience + GRACE)
    except BrokenPipeError:  # the parent has ended
        pass
    finally:
        os._exit(0)
