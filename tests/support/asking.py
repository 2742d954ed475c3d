"""Sends requests for a plan as a caller does: each parameter is a name and a text."""

from affinityd.cpuset import format_list, parse_list
from affinityd.daemon.api.plan import find_reply, pairs_of
from affinityd.errors import AffinityError
from affinityd.request.formats import render
from affinityd.request.parameters import parse_query
from affinityd.request.resolve import Caller, Reply, answer
from affinityd.topology.model import Node, Topology
from tests.support.tables import words


def ask(
    topology: Topology,
    *,
    reserved: str = "",
    mask: str | None = None,
    may_use: str | None = None,
    **parameters: str,
) -> Reply:
    """Return the reply to a request; `reserved`, `mask` and `may_use` are cpulists.

    `mask` is the caller's mask, and `may_use` the caller's cpuset if that is wider. Names in
    capitals are variables. The default mode is one that divides the cores.
    """
    query = {"mode": "unique_contiguous", **parameters}.items()
    return answer(
        Node(topology, parse_list(reserved)),
        parse_query(
            ("env", f"{name}={it}") if name.isupper() else (name, it) for name, it in query
        ),
        None if mask is None else Caller(parse_list(mask), parse_list(may_use or mask)),
    )


def answer_to(
    node: Node, query: bytes, caller: Caller | None = None, form: str = "json"
) -> tuple[Reply, str]:
    """Return the reply of `GET /plan` to a query string, and the reply's text."""
    reply = find_reply(node, parse_query(pairs_of(query)), caller)
    return reply, render(reply, form)


def try_to_ask(
    topology: Topology, *, reserved: str = "", **parameters: str
) -> Reply | AffinityError:
    try:
        return ask(topology, reserved=reserved, **parameters)
    except AffinityError as error:
        return error


def lists(topology: Topology, asked: str) -> str:
    """Return each rank's CPUs for a request like `gpus=0,1 mode=node`: `0-3 4-7`."""
    return " ".join(cpulists(ask(topology, **words(asked))))


def is_one_short_line(error: AffinityError) -> bool:
    return str(error).isprintable() and 0 < len(str(error)) < 500


def cpulists(reply: Reply) -> list[str]:
    return [format_list(rank.cpus) for rank in reply.ranks]


def homes(reply: Reply) -> list[int | None]:
    return [rank.home_node for rank in reply.ranks]


def codes(reply: Reply) -> list[str]:
    return [warning.code for warning in reply.warnings]
