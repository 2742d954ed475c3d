"""Slurm's own commands on this machine, which read its slurm.conf and gres.conf for us."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from affinityd.errors import InvalidRequestError

#: Where slurm.conf lies: in Slurm's own folder, Debian's old one, that of configless Slurm.
FOLDERS = ("/etc/slurm", "/etc/slurm-llnl", "/run/slurm/conf")

#: What a user's PATH may lack.
SBIN = ("/usr/sbin", "/usr/local/sbin", "/opt/slurm/sbin")


@dataclass(frozen=True)
class CommandOutput:
    """What a command printed."""

    succeeded: bool  #: it ended in time, with status 0
    out: str
    err: str


@dataclass(frozen=True)
class LocalSlurm:
    """The Slurm of this machine, by its slurm.conf."""

    conf: Path
    gres_conf: Path | None = None  #: the file that stands for its own beside `conf`

    def run(self, program: str, *arguments: str, seconds: float) -> CommandOutput:
        """Run one of Slurm's programs. Raises InvalidRequestError where it cannot be started."""
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), *SBIN))
        found = shutil.which(program, path=path)
        if found is None:
            raise InvalidRequestError(f"there is no {program} on this machine; it is part of Slurm")
        try:
            done = subprocess.run(  # noqa: S603 - one of Slurm's programs; no argument is a shell's
                (found, *arguments),
                check=False,
                capture_output=True,
                stdin=subprocess.DEVNULL,
                timeout=seconds,
                env={**os.environ, "SLURM_CONF": os.fspath(self.conf)},
            )
        except subprocess.TimeoutExpired as error:
            return CommandOutput(
                succeeded=False,
                out=_text(error.stdout),
                err=f"{_text(error.stderr)}\nfatal: no answer within {seconds:g} s",
            )
        except OSError as error:
            raise InvalidRequestError(f"{found} cannot be run: {error.strerror}") from None
        return CommandOutput(done.returncode == 0, _text(done.stdout), _text(done.stderr))

    @contextmanager
    def with_gres_conf(self, file: Path) -> Iterator[LocalSlurm]:
        """Give the same Slurm with another gres.conf. Raises InvalidRequestError."""
        if not file.is_file():
            raise InvalidRequestError(f"{file} is no file; name a gres.conf")
        with TemporaryDirectory(prefix="affinityd-") as name:
            folder = Path(name)
            for beside in self.conf.absolute().parent.iterdir():
                (folder / beside.name).symlink_to(beside)
            (folder / "gres.conf").unlink(missing_ok=True)
            (folder / "gres.conf").symlink_to(file.absolute())
            yield LocalSlurm(folder / self.conf.name, file)


def find_slurm(named: str | None, *, is_live: bool) -> LocalSlurm | None:
    """Return this machine's Slurm; None where no slurm.conf is found.

    `named`: its slurm.conf; None: that of $SLURM_CONF, else the first of the usual places, both
    only for the machine that we run on. Raises InvalidRequestError for a named file that is none.
    """
    path = named or (os.environ.get("SLURM_CONF") if is_live else None)
    if path is not None:
        if not Path(path).is_file():
            raise InvalidRequestError(f"{path} is no file; name a slurm.conf")
        return LocalSlurm(Path(path))
    places = [Path(folder, "slurm.conf") for folder in FOLDERS] if is_live else []
    found = next((place for place in places if place.is_file()), None)
    return LocalSlurm(found) if found else None


def _text(printed: bytes | None) -> str:
    return (printed or b"").decode(errors="replace")
