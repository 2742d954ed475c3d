"""How many connections there may be, whose, and what they hold; and who goes for another."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from affinityd.daemon.http.connections import Connection, Connections
from affinityd.daemon.http.refusals import MOST_OF_ONE, NO_ROOM, TOO_MANY, RefusalLog
from affinityd.daemon.peers.caller_key import CallerKey


@dataclass(eq=False)
class Held:
    """A connection that is nothing but held."""

    caller: CallerKey
    deadline: float = 0.0
    is_idle: bool = True
    is_stuck: bool = False
    holds: int = 0
    held: int = 0
    ended: bool = False
    expired: bool = False

    def expire(self) -> None:
        self.expired = True

    def end(self) -> None:
        self.ended = True


def counted(*callers: CallerKey, most: int = 100, most_held: int = 1000) -> tuple[Counted, ...]:
    """Return connections of these callers, all of which there is room for."""
    connections = Connections(RefusalLog(), most=most, most_held=most_held)
    there = tuple(Counted(caller, connections) for caller in callers)
    for it in there:
        assert connections.add(it) is None
    return there


class Counted(Held):
    """One that says how much it holds."""

    def __init__(self, caller: CallerKey, connections: Connections) -> None:
        super().__init__(caller)
        self.connections = connections

    def hold(self, size: int) -> None:
        self.holds = size
        self.connections.weigh(self)


def test_one_user_has_so_many_connections_and_the_next_is_refused() -> None:
    first, *_ = there = counted(*[1000] * MOST_OF_ONE, most=5000)
    connections = first.connections
    assert connections.add(Held(1000)) is TOO_MANY
    assert connections.add(Held(1001)) is None
    assert not any(it.ended for it in there)
    connections.remove(first)
    assert connections.add(Held(1000)) is None


def test_of_whoever_holds_most_the_heaviest_end_where_it_is_too_much_in_all() -> None:
    ann, *bobs = counted(1, 2, 2, 2)
    ann.hold(300)
    for it, size in zip(bobs, (100, 300, 250), strict=True):
        it.hold(size)
    assert not any(it.ended for it in (ann, *bobs))
    bobs[0].hold(200)
    assert [it.ended for it in (ann, *bobs)] == [False, False, True, True]


def test_what_has_been_taken_meanwhile_counts_no_more() -> None:
    ann, bob = counted(1, 2)
    ann.hold(900)
    ann.holds = 0
    bob.hold(900)
    assert not ann.ended
    assert not bob.ended


def test_what_nobody_said_counts_at_the_next_sweep() -> None:
    ann, *bobs = counted(1, 2, 2)
    ann.holds, bobs[0].holds, bobs[1].holds = 300, 100, 700
    assert not any(it.ended for it in (ann, *bobs))
    ann.connections.sweep(-1.0)
    assert [it.ended for it in (ann, *bobs)] == [False, False, True]


def test_what_has_ended_holds_nothing() -> None:
    ann, bob = counted(1, 2)
    ann.hold(900)
    ann.connections.remove(ann)
    ann.hold(900)  # it is told once more, by what was under way
    bob.hold(900)
    assert not bob.ended


@pytest.mark.parametrize("caller", [1, "192.0.2.1"], ids=["users", "the network"])
def test_users_and_the_network_leave_each_other_a_quarter(caller: CallerKey) -> None:
    other: CallerKey = "192.0.2.9" if caller == 1 else 9
    there = counted(*[caller] * 7, most=8)
    connections = there[0].connections
    assert [it.ended for it in there] == [True, *[False] * 6]
    assert connections.add(Held(other)) is None
    assert connections.add(Held(other)) is None
    assert sum(it.ended for it in there) == 1
    assert len(connections) == 8


@dataclass(frozen=True)
class Crowd:
    """Who is there, all that may be, in the order in which they came, who comes, and who goes.

    Each is whose it is, and how: `idle`, `busy` with a request, or an answer is `stuck`.
    """

    there: str
    newcomer: CallerKey
    goes: int | None  #: its place; None: the newcomer


#: Of eight, users may be six, and so may the network.
CROWDS = [
    pytest.param(Crowd("1idle 2idle 3idle 3idle 2idle 3idle", 4, 2), id="of whoever has most"),
    pytest.param(
        Crowd("1idle 2idle 3busy 3busy 2idle 3busy", 4, 1), id="else of who has next most"
    ),
    pytest.param(Crowd("3stuck 3busy 1idle 1idle 3idle 3idle", 4, 4), id="idle before stuck"),
    pytest.param(
        Crowd("1idle 1busy 3busy 3stuck 3busy 3stuck", 4, 3), id="stuck where none is idle"
    ),
    pytest.param(Crowd("1idle 1idle 2idle 3busy 3busy 3busy", 3, None), id="not of who has fewer"),
    pytest.param(Crowd("1idle 1idle 1idle 3busy 3busy 3busy", 3, 0), id="of who has as many"),
    pytest.param(Crowd("1idle 1idle 2idle 3stuck 3stuck 3busy", 3, 3), id="his own stuck ones"),
    pytest.param(Crowd("1idle 1busy 1busy 1busy 1busy 1busy", 1, 0), id="his own idle one"),
    pytest.param(Crowd("1busy 1busy 2busy 2busy 3busy 3busy", 4, None), id="nobody who is busy"),
    pytest.param(
        Crowd("aidle aidle 1busy 2idle 1busy 2busy 3busy 3busy", 4, 3), id="a user for a user"
    ),
    pytest.param(
        Crowd("aidle aidle 1busy 2busy 1busy 2busy 3busy 3busy", 4, None), id="and no other"
    ),
    pytest.param(
        Crowd("1idle 1idle aidle bidle cbusy abusy bbusy abusy", "d", 2),
        id="of the network for the network",
    ),
    pytest.param(
        Crowd("abusy aidle aidle 1busy 1busy 1idle 1busy 1busy", "b", 5),
        id="of either, while the newcomer's kind is not crowded",
    ),
    pytest.param(
        Crowd("abusy aidle aidle 1busy 1busy 2busy 2busy 1busy", 3, 1),
        id="of the network for a user",
    ),
]


@pytest.mark.parametrize("crowd", CROWDS)
def test_where_there_is_no_room_somebody_goes(crowd: Crowd) -> None:
    words = crowd.there.split()
    there = counted(*(int(it[0]) if it[0].isdigit() else it[0] for it in words), most=8)
    for it, word in zip(there, words, strict=True):
        it.is_idle, it.is_stuck = word[1:] == "idle", word[1:] == "stuck"
    refusal = there[0].connections.add(Held(crowd.newcomer))
    assert [place for place, it in enumerate(there) if it.ended] == (
        [] if crowd.goes is None else [crowd.goes]
    )
    assert refusal is (NO_ROOM if crowd.goes is None else None)
    assert len(there[0].connections) == len(there)


def test_who_has_many_that_take_no_answer_never_has_more_for_it() -> None:
    there = counted(*[1] * 4, *[2] * 2, most=8)
    for it in there:
        it.is_idle, it.is_stuck = it.caller == 2, it.caller == 1
    for _ in range(20):
        newcomer = Held(1, is_idle=False, is_stuck=True)
        assert there[0].connections.add(newcomer) is None
    assert not any(it.ended for it in there if it.caller == 2)


@dataclass(frozen=True)
class Swept:
    """When it is looked who is late, and what the deadline is then; whether it ends at last."""

    deadlines: dict[float, float]
    ends: bool


SWEPT = [
    pytest.param(Swept({10: 10, 11: 10}, ends=True), id="late twice"),
    pytest.param(Swept({10: 11, 11: 11}, ends=False), id="late at the last alone"),
    pytest.param(Swept({10: 10, 11: 20}, ends=False), id="has sent since"),
    pytest.param(Swept({10: 5, 11: 9}, ends=False), id="has sent since, and is late anew"),
    pytest.param(Swept({10: 5, 11: 9, 12: 9}, ends=True), id="has sent since, and no more"),
    pytest.param(Swept({10: 5, 11: 20, 20: 20}, ends=False), id="late again after a while"),
]


@pytest.mark.parametrize("swept", SWEPT)
def test_who_is_late_ends_unless_he_has_sent_since_the_last_sweep(swept: Swept) -> None:
    (it,) = counted(1)
    for now, deadline in swept.deadlines.items():
        assert not it.expired
        it.deadline = deadline
        it.connections.sweep(now)
    assert it.expired == swept.ends


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3))))
def test_what_is_counted_is_what_is_there(steps: list[tuple[bool, int]]) -> None:
    connections = Connections(RefusalLog(), most=1000, most_of_one=5)
    there: list[Connection] = []
    for comes, caller in steps:
        if comes:
            held = Held(caller)
            theirs = sum(it.caller == caller for it in there)
            assert (connections.add(held) is None) == (theirs < 5)
            there += [held] if theirs < 5 else []
        elif there:
            connections.remove(there.pop(caller % len(there)))
        assert len(connections) == len(there)
        assert connections._of.keys() == {it.caller for it in there}
