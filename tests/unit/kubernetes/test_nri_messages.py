"""NRI's frames and messages, as a runtime reads and writes them."""

from __future__ import annotations

import pytest

from affinityd.kubernetes.nri.messages import FRAME, PLUGIN, RESPONSE, Trunk, Ttrpc, packed

SHORT, LONG = (Ttrpc(PLUGIN, 7, RESPONSE, b"x" * size) for size in (3, 3 * 4096))


@pytest.mark.parametrize("part", [1, 7, 4096, 10**6])
def test_messages_are_put_together_from_any_parts(part: int) -> None:
    sent = packed(SHORT) + packed(LONG) + FRAME.pack(9, 2) + b"xx" + packed(SHORT)
    trunk = Trunk()
    parts = (sent[place : place + part] for place in range(0, len(sent), part))
    assert [it for data in parts for it in trunk.received(data)] == [SHORT, LONG, SHORT]


def test_no_frame_is_longer_than_the_buffer_of_a_runtime() -> None:
    sent = packed(LONG)
    lengths = []
    while sent:
        _, length = FRAME.unpack_from(sent)
        lengths.append(length)
        sent = sent[FRAME.size + length :]
    assert max(lengths) == 4096
    assert sum(lengths) == 10 + len(LONG.data)
