"""A kubelet's settings about CPUs and NUMA nodes, by its command line, its files and its state.

Sources: Kubernetes cmd/kubelet/app/server.go (the files of --config-dir are merged by their names,
flags win), staging/src/k8s.io/kubelet/config/v1beta1/types.go, pkg/kubelet/cm/cpumanager/state. To
read a kubelet's files by its /proc/PID/root takes all of its capabilities, or CAP_SYS_PTRACE.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping

from affinityd.audit.model import KubeletConfig
from affinityd.linux.files import content, read_regular
from affinityd.linux.processes import PROC

NAME = "kubelet"
KIND = "KubeletConfiguration"
FOLDER = "/var/lib/kubelet"
LARGEST = 2**20  #: bytes of a file

#: Setting → its flag, and its default.
POLICIES = {
    "cpuManagerPolicy": ("cpu-manager-policy", "none"),
    "topologyManagerPolicy": ("topology-manager-policy", "none"),
}

#: The texts in a file, by their names.
Texts = Mapping[str, str]


def read(pid: int, proc: str = PROC) -> KubeletConfig:
    """Return the settings of a kubelet; of another program that contains one, as k3s, its state.

    What cannot be read is None. The state has the CPU policy: kubelet starts with no other.
    """
    words = os.fsdecode(content(f"{proc}/{pid}/cmdline") or b"").split("\0")
    is_kubelet = words[0].rpartition("/")[2] == NAME
    flags = _flags(words) if is_kubelet else {}
    try:
        files = _files(f"{proc}/{pid}", flags) if is_kubelet else None
    except (OSError, ValueError):
        files = None
    state = content(f"{proc}/{pid}/root{flags.get('root-dir', FOLDER)}/cpu_manager_state")
    return KubeletConfig(
        cpu_policy=_policy(state) or _text("cpuManagerPolicy", flags, files),
        topology_policy=_text("topologyManagerPolicy", flags, files),
    )


def _flags(words: list[str]) -> Texts:
    """Return the values of flags: --name=value, --name value; the last one counts."""
    flags = {}
    for word, following in zip(words[1:], [*words[2:], ""], strict=True):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            flags[name] = value if equals else following
    return flags


def _files(process: str, flags: Texts) -> Texts:
    """Return the settings of --config, and over them those of --config-dir.

    Raises OSError, and ValueError for a file of another kind.
    """

    def here(path: str) -> str:
        return f"{process}/root{path}" if path.startswith("/") else f"{process}/cwd/{path}"

    paths = [here(path) for path in (flags.get("config"),) if path]
    if folder := flags.get("config-dir"):
        walk = os.walk(here(folder), onerror=_raise)
        files = (f"{place}/{name}" for place, _, names in walk for name in names)
        confs = [path for path in files if path.endswith(".conf")]
        paths += sorted(confs, key=lambda path: path.split("/"))
    texts: dict[str, str] = {}
    for path in paths:
        settings = dict(_texts(read_regular(path, LARGEST).decode()))
        if settings.get("kind") != KIND:
            raise ValueError(f"{path} is no {KIND}")
        texts |= settings
    return texts


def _raise(error: OSError) -> None:
    raise error


def _texts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the texts of a JSON document, or of the first level of YAML. Raises ValueError."""
    if text.lstrip().startswith("{"):
        named = json.loads(text).items()
        yield from ((name, value) for name, value in named if isinstance(value, str))
        return
    for line in text.splitlines():
        key, colon, value = re.sub(r"(^|\s)#.*", "", line).partition(":")
        if colon and key and not key[0].isspace():
            plain = value.strip(" \t\"'")
            yield key.strip("\"'"), "" if plain in {"null", "~"} else plain


def _policy(state: bytes | None) -> str | None:
    try:
        name = json.loads(state or b"{}").get("policyName")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def _text(setting: str, flags: Texts, files: Texts | None) -> str | None:
    flag, default = POLICIES[setting]
    return flags.get(flag) or (None if files is None else files.get(setting) or default)
