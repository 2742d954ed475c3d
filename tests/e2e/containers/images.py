"""Container images for tests, made from Debian's packages and our Dockerfile, without a registry.

The images are kept; that of the working tree is rebuilt when the tree has changed.
"""

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
from tests.support.tiny import Ended, printed, ran

SUITE = "bookworm"
#: Packages of `base`, which stands for python:3.12-slim; `debian` also has curl.
PACKAGES = ("dash", "util-linux", "ca-certificates", "python3", "python3-venv")
UNREAD = ("doc", "info", "locale", "man")  #: folders of /usr/share

CERTIFICATES = "/etc/ssl/certs"
#: Settings of pip here → build arguments with which a build's pip reaches the same index.
PIP = {"cert": "PIP_CERT", "index-url": "PIP_INDEX_URL"}


@cache
def client(name: str) -> str:
    """Return the tag of an image for jobs: `debian` or `busybox`.

    debian has python3, curl and taskset; busybox has only its own sh, taskset and wget.
    """
    return _busybox() if name == "busybox" else _debian(name, *PACKAGES, "curl")


@cache
def affinityd() -> str:
    tag = f"localhost/affinityd:test-{hashlib.sha256(os.fsencode(REPOSITORY)).hexdigest()[:8]}"
    built = build(tag)
    assert built.status == 0, built.stderr
    return tag


def base() -> str:
    """Return the tag of our image's base image."""
    return _debian("base", *PACKAGES)


def build(*arguments: str, **variables: str) -> Ended:
    on = base()
    with locked():
        # The untagged images of a build are the cache of the next build.
        attempt("image", "prune", "--force", "--filter=until=24h")
        command = [os.fspath(REPOSITORY / "scripts/image"), *arguments, "--pull=never"]
        variables = {"IMAGE_TOOL": "podman", "BASE_IMAGE": on, **variables}
        return ran(*command, *network(), env={**environment(), **variables}, timeout=600)


def network() -> list[str]:
    """Return build options that lead to this machine's package index."""
    printed = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    settings = re.findall(r"^[\w:]+\.(cert|index-url)='(.*)'$", printed, re.MULTILINE)
    arguments = [f"--build-arg={PIP[key]}={value}" for key, value in settings]
    return ["--network=host", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", *arguments]


@cache
def _debian(name: str, *packages: str) -> str:
    excluded = (f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in UNREAD)
    include = f"--include={','.join(packages)}"
    command = ["mmdebstrap", "--quiet", "--variant=essential", include, *excluded, SUITE]

    def write(archive: Path) -> None:
        printed(*command, archive, timeout=600)

    return _made(name, write, recipe=command)


def _busybox() -> str:
    program = Path(shutil.which("busybox") or "").resolve()
    applets = subprocess.check_output([program, "--list"], text=True).split()

    def write(archive: Path) -> None:
        root = archive.with_name("root")
        for folder in ("bin", "dev", "etc", "proc", "run", "sys", "tmp"):
            (root / folder).mkdir(parents=True)
        shutil.copy(program, root / "bin/busybox")
        for applet in {*applets} - {"busybox"}:
            (root / "bin" / applet).symlink_to("busybox")
        subprocess.run(["tar", "-cf", archive, "-C", root, "."], check=True)

    return _made("busybox", write, recipe=(applets, program.stat().st_mtime_ns))


def _made(name: str, write: Callable[[Path], None], recipe: object) -> str:
    """Return an image's tag; import a missing image from the archive that `write` writes."""
    key = hashlib.sha256(repr(recipe).encode()).hexdigest()[:8]
    tag = f"localhost/test-{name}:{key}"
    environment()
    with locked(), tempfile.TemporaryDirectory() as folder:
        if attempt("image", "exists", tag).status != 0:
            archive = Path(folder, "image.tar")
            write(archive)
            podman("import", "--quiet", archive, tag)
    return tag
