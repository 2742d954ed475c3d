"""Builds the packages affinityd and affinityd-daemon for Debian and for RPM.

`deb/build` and `rpm/build` call it. The first package is the same on every machine. The second has
the wheels of deploy/image/requirements.txt, unpacked: pure wheels once, compiled wheels for each
Python and for one architecture.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGING = REPOSITORY / "packaging"
PYTHONS = range(11, 15)  #: the minor versions: of the lock's oldest, to the newest that was tried
PLATFORMS = ("manylinux2014", "manylinux_2_28")  #: of wheels: glibc 2.28 or newer, as in RHEL 8
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}  #: by Debian's names
#: Folders that belong to other packages, too, and do not exist in every root.
SHARED = ("/etc/slurm", *(f"/usr/share/{it}" for it in ("bash-completion", "fish", "zsh")))
NAMES = ("affinityd", "affinityd-daemon")


def main(kind: str, folder: str, architecture: str = "") -> None:
    """Build both packages of a kind into a folder."""
    os.environ["SOURCE_DATE_EPOCH"] = str(_epoch())
    os.environ |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
    into = Path(folder).resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        {"deb": _deb, "rpm": _rpm}[kind](Path(name), into, architecture)


def _deb(build: Path, into: Path, architecture: str) -> None:
    architecture = architecture or _printed("dpkg", "--print-architecture")
    source = build / "affinityd"
    shutil.copytree(PACKAGING / "deb/debian", source / "debian")
    _lay_out(source / "tree", MACHINES[architecture])
    zsh = source / "tree/affinityd/usr/share/zsh"
    (zsh / "site-functions").rename(zsh / "vendor-completions")  # where Debian's zsh looks
    moment = formatdate(_epoch())
    (source / "debian/changelog").write_text(
        f"affinityd ({_version()}) unstable; urgency=medium\n\n"
        f"  * https://github.com/affinityd/affinityd/blob/main/CHANGELOG.md\n\n"
        f" -- affinityd's maintainers <affinityd@users.noreply.github.com>  {moment}\n"
    )
    _run("dpkg-buildpackage", "--build=binary", "-uc", "-us", f"-a{architecture}", at=source)
    for package in build.glob("*.deb"):
        shutil.copy(package, into)
        print(into / package.name)


def _rpm(build: Path, into: Path, architecture: str) -> None:
    machine = architecture or os.uname().machine
    _lay_out(build / "tree", machine)
    for name in NAMES:
        files = _owned(build / "tree" / name)
        (build / f"tree/{name}.files").write_text("".join(f"{it}\n" for it in files))
    defined = {
        "tree": build / "tree",
        "number": _version(),
        "day": time.strftime("%a %b %d %Y", time.gmtime(_epoch())),
        "_topdir": build,
        "_buildhost": "localhost",
        "_binary_payload": "w7.xzdio",  # of the rpm of RHEL 8, and newer ones
        "use_source_date_epoch_as_buildtime": 1,
        "clamp_mtime_to_source_date_epoch": 1,
    }
    options = [word for name, value in defined.items() for word in ("--define", f"{name} {value}")]
    spec = PACKAGING / "rpm/affinityd.spec"
    _run("rpmbuild", "-bb", f"--target={machine}-linux", *options, spec)
    for package in (build / "RPMS").rglob("*.rpm"):
        shutil.copy(package, into)
        print(into / package.name)


def _owned(root: Path) -> Iterator[str]:
    """Yield the lines of %files: our folders, all files, and the bytecode that scripts make."""
    for path in sorted(root.rglob("*")):
        name = f"/{path.relative_to(root)}"
        if path.is_dir() and (name.startswith(SHARED) or "affinityd" in name.split("/")):
            yield f"%dir {name}"
            if any(path.glob("*.py")):
                yield f"%ghost %dir %attr(755,root,root) {name}/__pycache__"
        elif path.is_file() and name != "/etc/affinityd.conf":  # the spec has it
            yield name
        if path.suffix == ".py":
            only = re.search(r"/cp3(\d+)/", name)
            for minor in [only[1]] if only else PYTHONS:
                code = f"__pycache__/{path.stem}.cpython-3{minor}.pyc"
                yield f"%ghost %attr(644,root,root) {Path(name).parent}/{code}"


def _version() -> str:
    text = (REPOSITORY / "affinityd/__init__.py").read_text()
    return text.split('__version__ = "')[1].split('"')[0]


def _epoch() -> int:
    """Return the time of every file: SOURCE_DATE_EPOCH, or that of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    asks = ["git", "-C", os.fspath(REPOSITORY), "log", "-1", "--format=%ct"]
    return int(given or _printed(*asks))


def _lay_out(tree: Path, machine: str) -> None:
    """Write the files of each package below a folder of its name."""
    base, daemon = (tree / name for name in NAMES)
    _base(base)
    _daemon(daemon, machine)
    for path in tree.rglob("*"):
        ours = "bin" in path.parts or "slurm" in path.parts
        executable = path.is_dir() or (ours and path.read_bytes().startswith(b"#!"))
        path.chmod(0o755 if executable else 0o644)


def _base(root: Path) -> None:
    shutil.copytree(
        REPOSITORY / "affinityd",
        root / "usr/lib/affinityd/affinityd",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    program = root / "usr/bin/affinityd"
    _copy("packaging/affinityd", program)
    _, _, guarded_start = (REPOSITORY / "bin/affinityd").read_text().partition("of the packages.\n")
    program.write_text(f"{program.read_text()}{guarded_start}")
    _copy("deploy/systemd/affinityd.conf", root / "etc/affinityd.conf")
    for script in (REPOSITORY / "slurm").glob("*.sh"):
        _copy(f"slurm/{script.name}", root / "etc/slurm/affinityd" / script.name)
    for name in ("slurm/slurm.conf", "slurm/gres.conf", "slurm/enroot/50-affinityd.fstab"):
        _copy(name, root / "usr/share/affinityd" / name)
    _run(REPOSITORY / "scripts/manual", root / "usr/share")


def _daemon(root: Path, machine: str) -> None:
    _copy("deploy/systemd/affinityd.service", root / "usr/lib/systemd/system/affinityd.service")
    modules = root / "usr/lib/affinityd/daemon"
    with tempfile.TemporaryDirectory() as wheels:
        _download(wheels, machine)
        for wheel in Path(wheels).iterdir():
            compiled = re.search(r"-(cp3\d+)-cp3\d+-manylinux", wheel.name)
            folder = compiled[1] if compiled else "any"
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(modules / folder)
    # Debugging symbols are most of what the wheels have.
    strip = "strip" if machine == os.uname().machine else f"{machine}-linux-gnu-strip"
    _run(strip, "--strip-unneeded", *modules.rglob("*.so"))


def _download(folder: str, machine: str) -> None:
    """Download the lock's wheels, whose hashes pip checks, for each Python."""
    with tempfile.TemporaryDirectory() as venv:
        _run(sys.executable, "-m", "venv", venv)
        command = [f"{venv}/bin/python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        command += ["download", "--only-binary", ":all:", "--no-deps", "--require-hashes"]
        command += [f"--platform={platform}_{machine}" for platform in PLATFORMS]
        command += ["--dest", folder, "-r", f"{REPOSITORY / 'deploy/image/requirements.txt'}"]
        for minor in PYTHONS:
            _run(*command, f"--python-version=3.{minor}")


def _copy(name: str, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(REPOSITORY / name, to)


def _run(*command: str | Path, at: Path = REPOSITORY) -> None:
    ended = subprocess.run(
        command, cwd=at, check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if ended.returncode:
        sys.exit(f"{ended.stdout}{command[0]} failed")


def _printed(*command: str) -> str:
    return subprocess.check_output(command, text=True).strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
