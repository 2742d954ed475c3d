"""The choices of a site, a namespace and a pod for the pod's containers, all read alike. Pure.

A namespace's choices are its pods' defaults. A pod has annotations like affinityd/mode: socket, and
the label affinityd, which is the choice `switch`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from affinityd import config
from affinityd.client.apply import nic_libraries
from affinityd.errors import InvalidRequestError
from affinityd.kubernetes.nri.messages import Pod
from affinityd.planner import Options
from affinityd.request.parameters import parse_request, suggestion
from affinityd.text import quote

LABEL = "affinityd"  #: label of a pod: on, observe or off
ANNOTATION = "affinityd/"  #: prefix of the annotations with a pod's choices
CHOICES = ("switch", "mode", "nics", "memory")


@dataclass(frozen=True)
class Choices:
    """How a pod's containers are adjusted."""

    switch: str = config.ON
    options: Options = field(default_factory=lambda: Options(mode="node"))
    nics: str = ""  #: libraries whose variables name the NICs near a GPU, like `ucx,nccl`
    binds_memory: bool = False  #: whether a container's memory is bound to the nodes near its GPUs


@dataclass(frozen=True)
class Rules:
    """The settings of the plugin."""

    namespaces: Mapping[str, Choices]
    folder: str | None = None  #: folder of the daemon's socket on the node; None: it is not mounted
    default: Choices = Choices()  #: for pods in namespaces that are not listed
    without_request: str = "share"  #: what a container without a CPU request gets
    #: Returns the names of an RDMA device's files in /dev/infiniband.
    verbs: Callable[[str], Collection[str]] = lambda _device: ()

    def of_namespace(self, name: str) -> Choices | None:
        """Return the choices of a namespace; None: the namespace is not listed."""
        choices = self.namespaces.get(name)
        if choices is None and name != "kube-system":  # which `*` leaves out
            choices = self.namespaces.get("*")
        return choices


def is_chosen(pod: Pod, rules: Rules) -> bool:
    """Return whether the site or the pod has chosen anything for the pod's containers."""
    says = LABEL in pod.labels or f"{ANNOTATION}switch" in pod.annotations
    return says or rules.of_namespace(pod.namespace) is not None


def choices_of(pod: Pod, rules: Rules) -> Choices:
    """Return the choices that apply to a pod. Raises InvalidRequestError for a wrong value."""
    default = rules.of_namespace(pod.namespace)
    annotated = {
        name.removeprefix(ANNOTATION): text
        for name, text in pod.annotations.items()
        if name.startswith(ANNOTATION)
    }
    label = pod.labels.get(LABEL)
    choices = read_choices(annotated, default or rules.default, "the annotation affinityd/")
    if label is None:
        return choices
    switch = config.read_switch(label, f"the label {LABEL}")
    if "switch" in annotated:
        switch = config.least_switch(switch, choices.switch)
    return replace(choices, switch=switch)


def read_choices(texts: Mapping[str, str], default: Choices, source: str) -> Choices:
    """Return the choices in `texts`. Raises InvalidRequestError, which begins with `source`."""
    choices = default
    name = ""
    try:
        for name, text in texts.items():
            choices = _with_choice(choices, name, text)
    except InvalidRequestError as error:
        why = str(error).removeprefix(f"{name}: ")
        raise InvalidRequestError(f"{source}{name[:64]}: {why}") from None
    return choices


def _with_choice(choices: Choices, name: str, text: str) -> Choices:
    if name == "switch":
        return replace(choices, switch=config.read_switch(text, name))
    if name == "mode":
        return replace(choices, options=parse_request([("mode", text)]).options)
    if name == "nics":
        nics = text.replace("+", ",")  # written with +: a comma ends a namespace's entry
        nic_libraries(nics)
        return replace(choices, nics=nics)
    if name == "memory":
        if text not in {"near", "any"}:
            raise InvalidRequestError(f"{quote(text)} is neither near nor any")
        return replace(choices, binds_memory=text == "near")
    raise InvalidRequestError(f"there is no such choice; {suggestion(name, CHOICES)}")
