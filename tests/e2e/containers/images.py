"""The images of the tests, made without a registry and kept: Debian's packages, and our Dockerfile.

Each is named after its recipe. What is built from the working tree is built anew wherever the tree
has changed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from tests.e2e.containers.podman import attempt, environment, locked, podman
from tests.support.paths import REPOSITORY

SUITE = "bookworm"
#: What `debian` has of Debian.
PACKAGES = ("dash", "util-linux", "curl", "ca-certificates", "python3", "python3-venv")
#: Images that are `debian` without some programs. `base` stands for python:3.12-slim.
WITHOUT = {"base": "curl", "ubuntu-like": "curl python3 python3.*"}
UNREAD = ("doc", "info", "locale", "man")  #: folders of /usr/share

CERTIFICATES = "/etc/ssl/certs"
#: By which arguments of a build its pip reaches what pip reaches here.
PIP = {"cert": "PIP_CERT", "index-url": "PIP_INDEX_URL"}


@cache
def client(name: str) -> str:
    """Return the tag of an image for jobs: `debian`, `ubuntu-like` or `busybox`.

    debian has python3, curl and taskset; ubuntu-like has taskset, and neither python3 nor curl;
    busybox has its own sh, taskset and wget, and nothing else.
    """
    return _busybox() if name == "busybox" else _debian() if name == "debian" else _without(name)


@cache
def affinityd() -> str:
    """Return the tag of the image that scripts/image builds from the working tree."""
    tag = f"localhost/affinityd:test-{hashlib.sha256(os.fsencode(REPOSITORY)).hexdigest()[:8]}"
    built = build(tag)
    assert built.returncode == 0, built.stderr
    return tag


def build(
    *arguments: str, checkout: Path = REPOSITORY, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a checkout's scripts/image, upon this machine's base and through its network."""
    base = _without("base")
    with locked():
        # What a build leaves untagged is the cache of the next one.
        attempt("image", "prune", "--force", "--filter=until=24h")
        return subprocess.run(
            [checkout / "scripts/image", *arguments, "--pull=never", *_network()],
            env={**environment(), "IMAGE_TOOL": "podman", "BASE_IMAGE": base, **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )


def _network() -> list[str]:
    """Return the options by which a build has this machine's network."""
    said = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    settings = re.findall(r"^[\w:]+\.(cert|index-url)='(.*)'$", said, re.MULTILINE)
    arguments = [f"--build-arg={PIP[key]}={value}" for key, value in settings]
    return ["--network=host", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", *arguments]


@cache
def _debian() -> str:
    excluded = (f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in UNREAD)
    include = f"--include={','.join(PACKAGES)}"
    command = ["mmdebstrap", "--quiet", "--variant=essential", include, *excluded, SUITE]

    def make(tag: str) -> None:
        def write(archive: Path) -> None:
            done = subprocess.run(
                [*command, archive], capture_output=True, text=True, check=False, timeout=600
            )
            assert done.returncode == 0, done.stderr

        _import(tag, write)

    return _made("debian", make, recipe=command)


@cache
def _without(name: str) -> str:
    whole = _debian()
    script = f"cd /usr/bin && rm {WITHOUT[name]}"

    def make(tag: str) -> None:
        container = f"making-{name}"
        podman("run", f"--name={container}", "--network=none", whole, "sh", "-c", script)
        podman("commit", "--quiet", container, tag)
        podman("rm", container)

    return _made(name, make, recipe=(whole, script))


def _busybox() -> str:
    program = Path(shutil.which("busybox") or "").resolve()
    applets = subprocess.check_output([program, "--list"], text=True).split()

    def write(archive: Path) -> None:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            root.chmod(0o755)
            for folder in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
                (root / folder).mkdir()
            shutil.copy(program, root / "bin/busybox")
            for applet in applets:
                if applet != "busybox":
                    (root / "bin" / applet).symlink_to("busybox")
            subprocess.run(["tar", "-cf", archive, "-C", root, "."], check=True)

    recipe = (applets, program.stat().st_mtime_ns)
    return _made("busybox", lambda tag: _import(tag, write), recipe)


def _import(tag: str, write: Callable[[Path], None]) -> None:
    """Make an image of the files that `write` writes into an archive."""
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder, "image.tar")
        write(archive)
        podman("import", "--quiet", archive, tag)


def _made(name: str, make: Callable[[str], None], recipe: object) -> str:
    """Return the tag of an image, which is made where there is none yet."""
    key = hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]
    tag = f"localhost/test-{name}:{key}"
    environment()
    with locked():
        if attempt("image", "exists", tag).status != 0:
            make(tag)
    return tag
