"""The settings file, its variables, the sockets of clients, and AFFINITYD=on|observe|off."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from affinityd import config
from affinityd.cpuset import parse_list
from affinityd.daemon.api.plan import observed_placement
from affinityd.errors import InvalidRequestError
from affinityd.request.resolve import Caller
from affinityd.topology.model import Node, Topology
from tests.support.asking import answer_to
from tests.support.machines.by_hand import made

#: Meaning of AFFINITYD → words for it; and words without a meaning.
WORDS = {
    "off": ("off", "OFF", "Off", "0", "no", "No", "false", "False"),
    "observe": ("observe", "Observe", "OBSERVE"),
    "on": ("on", "ON", "1", "yes", "true", ""),
}
OTHERS = ("obsreve", "offline", "on ", "2", "*", "$(id)", "of\nf")

SYSTEM = "/run/affinityd/affinityd.sock"
EVEN, ALL = {"AFFINITYD_MODE": "even"}, {"AFFINITYD_MODE": "all"}


@pytest.mark.parametrize(
    ("file", "environ", "expected"),
    [
        ("AFFINITYD_MODE=even\nAFFINITYD_SHARE=node", ALL, {**ALL, "AFFINITYD_SHARE": "node"}),
        ("AFFINITYD_MODE=even", {"AFFINITYD_MODE": ""}, EVEN),
        ("AFFINITYD_MODE=even\nAFFINITYD_MODE=all", {}, ALL),
        ("MODE=x\nXAFFINITYD_MODE=all\naffinityd_mode=node", {"MODE": "even", "PATH": "/bin"}, {}),
        ("AFFINITYD_MODE = \"even\"\r\nPATH='/bin'\r\n", {}, EVEN),
        ("# AFFINITYD_MODE=even\n; AFFINITYD_MODE=even\n\n", {}, {}),
    ],
)
def test_a_variable_overrides_the_file(
    tmp_path: Path, file: str, environ: Mapping[str, str], expected: Mapping[str, str]
) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_text(file)
    told = config.variables({**environ, "AFFINITYD_CONFIG": str(path)})
    assert told == {**expected, "AFFINITYD_CONFIG": str(path)}


def test_the_settings_file_is_in_etc_or_where_a_variable_says_and_may_be_missing() -> None:
    assert config.path({}) == config.path({"AFFINITYD_CONFIG": ""}) == "/etc/affinityd.conf"
    assert config.path({"AFFINITYD_CONFIG": "/etc/other"}) == "/etc/other"
    assert config.read_file("/nowhere/none") == {}


FORBIDDEN = "has a quote, a backslash or a NUL in its value"


def refusal(path: Path) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        config.read_file(str(path))
    return str(caught.value).replace(str(path), "FILE")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("A=1\nnonsense of mine\n", "FILE:2: 'nonsense' is not written as NAME=value"),
        ("export A_B=/\n", "FILE:1: 'export A_B' is not written as NAME=value"),
        ("A_B='/open\n", f"FILE:1: 'A_B' {FORBIDDEN}"),
        ("A_B=/a\\\n/b\n", f"FILE:1: 'A_B' {FORBIDDEN}"),
        ("A=\0", f"FILE:1: 'A' {FORBIDDEN}"),
        (b"AFFINITYD_MODE=\xff", "FILE is not UTF-8"),
        (b"#" * (2**20 + 1), "FILE cannot be read: longer than 1048576 bytes"),
    ],
)
def test_a_malformed_file_is_an_error_of_one_line(
    tmp_path: Path, content: str | bytes, line: str
) -> None:
    path = tmp_path / "affinityd.conf"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert refusal(path) == line


# The sockets at which clients look for a daemon.


def test_a_client_tries_the_socket_of_a_setting_or_else_the_two_default_sockets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for user, folder, own in (
        (0, "/run/me", SYSTEM),
        (1000, "/run/me", "/run/me/affinityd.sock"),
        (1000, "", "/run/user/1000/affinityd.sock"),
    ):
        monkeypatch.setattr(os, "geteuid", lambda it=user: it)
        environ = {"XDG_RUNTIME_DIR": folder}
        assert config.default_socket(environ) == own
        assert config.sockets({}, environ) == ([SYSTEM, own] if user else [SYSTEM])
        assert config.sockets({"AFFINITYD_SOCKET": "/x"}, environ) == ["/x"]


@pytest.mark.parametrize(("meant", "words"), WORDS.items(), ids=str)
def test_each_word_of_the_switch_has_a_meaning(meant: str, words: tuple[str, ...]) -> None:
    assert {config.read_switch(word) for word in words} == {meant}


@pytest.mark.parametrize("word", OTHERS)
def test_an_unknown_word_is_refused_but_counts_as_off_in_another_process(word: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"none of on, observe, off$"):
        config.read_switch(word)
    assert config.read_switch_or_off(word) == "off"


def test_the_strictest_switch_of_job_and_site_applies(tmp_path: Path) -> None:
    conf = tmp_path / "affinityd.conf"
    order = ("off", "observe", "on", "")
    for site in order:
        conf.write_text(f"AFFINITYD={site}\n")
        for job in order:
            least = order[min(order.index(job), order.index(site), 2)]
            environ = {"AFFINITYD": job, "AFFINITYD_CONFIG": str(conf)}
            assert config.chosen_switch(environ) == least


#: GPU 0 is near CPUs 0-3, GPU 1 near 4-7; the place of GPU 2 is not known.
MACHINE = made({0: "0-3", 1: "4-7"}, gpus=(0, 1, None))
ONE_NODE = made({0: "0-7"}, gpus=(0,))


@pytest.mark.parametrize(
    ("machine", "query", "before", "after"),
    [
        (MACHINE, "gpus=0&observe=0-1", "local", "local"),
        (MACHINE, "gpus=0&observe=4", "remote", "local"),
        (MACHINE, "gpus=0&observe=3-4", "mixed", "local"),
        (MACHINE, "gpus=0&observe=0-7", "unpinned", "local"),
        (MACHINE, "gpus=0,1&observe=2-5", "local", "local"),
        (MACHINE, "gpus=0,1&rank=1&observe=0", "remote", "local"),
        (MACHINE, "gpus=0,2&observe=4", "unknown", "unknown"),
        (ONE_NODE, "gpus=0&observe=0-7", "local", "local"),
    ],
)
def test_an_observed_plan_is_counted_with_the_placements_before_and_after_it(
    machine: Topology, query: str, before: str, after: str
) -> None:
    for format_name in ("shell", "json"):
        reply, text = answer_to(Node(machine), query.encode(), form=format_name)
        observed = observed_placement(machine, reply, None, format_name)
        assert (observed, reply.locality) == (before, after)
        assert ("AFFINITYD=observe" in text) == (format_name == "shell")


@pytest.mark.parametrize(
    ("site", "query", "caller", "observed", "told"),
    [
        ("on", "", None, None, None),
        ("observe", "", None, "unknown", "observe"),
        ("observe", "", "4-7", "remote", "observe"),
        ("observe", "whose=node", "4-7", None, "observe"),  # an init container asks
        ("observe", "format=json", "4-7", None, None),  # a client that only asks
        ("off", "observe=4-7", "4-7", None, "off"),
    ],
)
def test_the_node_s_switch_is_sent_to_clients_that_apply_a_plan(
    site: str, query: str, caller: str | None, observed: str | None, told: str | None
) -> None:
    form = "json" if "format" in query else "shell"
    who = None if caller is None else Caller(parse_list(caller))
    reply, text = answer_to(
        Node(MACHINE, switch=site), f"gpus=0&{query}".rstrip("&").encode(), who, form
    )
    lines = dict(line.partition("=")[::2] for line in text.splitlines())
    assert observed_placement(MACHINE, reply, who, form) == observed
    assert lines.get("AFFINITYD") == told
