"""A daemon that has only given capabilities, system calls and files.

The daemon's own root contains Python's files, /proc, and the given files.
"""

import os
import shlex
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.child_python import SECCOMP
from tests.support.paths import REPOSITORY

#: Files that every program of Python needs, not only the daemon.
PROGRAM = (
    *("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"),
    *("/dev/null", "/dev/urandom"),
    sys.prefix,
    sys.base_prefix,
    os.fspath(REPOSITORY),
)

#: argv: the system calls that are refused, then `--`, then the command.
REFUSING = f"""{SECCOMP}
end = sys.argv.index("--")
for name in sys.argv[1:end]:
    refuse(name)
os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
"""


@dataclass(frozen=True)
class Confinement:
    capabilities: Collection[str]
    refused: Collection[str]  #: system calls
    shown: Mapping[str, Path]  #: path that the daemon sees → the real path; read only
    written: Mapping[str, Path]  #: the same, writable
    hidden: Collection[str]  #: files and folders of /proc; `self` is the daemon
    driver: Path | None  #: the folder that the daemon sees at /proc/driver; None: no folder
    namespaces: Collection[str]  #: the daemon's own, not the node's

    def before(self, folder: Path) -> list[str]:
        """Return the prefix of a command with these limits; the folder becomes the root."""
        filtered = [sys.executable, "-c", REFUSING, *self.refused, "--"] if self.refused else []
        capabilities = "".join(f",+{name.lower()}" for name in self.capabilities)
        powers = ["setpriv", f"--bounding-set=-all{capabilities}", "--inh-caps=-all"]
        script = "\n".join(("set -e", *self._mounts(folder), 'exec "$@"'))
        inside = ["chroot", os.fspath(folder), "env", f"--chdir={REPOSITORY}"]
        fork = ["--fork", "--kill-child"] if self.namespaces else []
        own = ["unshare", "--mount", *(f"--{name}" for name in self.namespaces), *fork]
        return [*own, "sh", "-c", script, "sh", *inside, *powers, *filtered]

    def _mounts(self, root: Path) -> Iterator[str]:
        yield f"mount -t tmpfs -o mode=755 tmpfs {root}"
        program = {place: Path(place) for place in PROGRAM if os.path.lexists(place)}
        for place, source in sorted((program | dict(self.shown)).items()):
            yield from _bound(root, place, source)
            yield f"mount -o remount,ro,bind {shlex.quote(f'{root}{place}')}"
        for place, source in self.written.items():
            yield from _bound(root, place, source)
        yield f"mkdir -p {root}/proc {root}/empty"
        proc = "-t proc proc" if "pid" in self.namespaces else "--rbind /proc"
        yield f"mount {proc} {root}/proc"
        yield f"touch {root}/nothing && chmod 0 {root}/nothing {root}/empty"
        yield f"mount --bind {self.driver or f'{root}/empty'} {root}/proc/driver"
        for path in self.hidden:
            place = f"{root}{path.replace('/self/', '/$$/')}"
            yield f'if [ -d "{place}" ]; then it=empty; else it=nothing; fi'
            yield f'[ ! -e "{place}" ] || mount --bind {root}/$it "{place}"'
        yield f"mount -o remount,ro {root}"


def _bound(root: Path, place: str, source: Path) -> Iterator[str]:
    at, it = shlex.quote(f"{root}{place}"), shlex.quote(os.fspath(source))
    yield f"mkdir -p $(dirname {at})"
    yield f"[ -e {at} ] || if [ -d {it} ]; then mkdir {at}; else touch {at}; fi"
    yield f"mount --rbind {it} {at}"
