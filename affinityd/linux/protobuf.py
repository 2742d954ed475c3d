"""Messages of Protocol Buffers, read and written without their descriptions.

Source: https://protobuf.dev/programming-guides/encoding. A field that has its default is not in a
message. Readers raise ValueError, one line, for bytes that are no message, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from affinityd.text import printable

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  #: wire types
SIZES = {FIXED64: 8, FIXED32: 4}
MOST_BITS = 64
MOST_FIELDS = 2**16  #: of a message, or numbers of a field: memory is a hundred times the bytes

Value = int | bytes  #: a number; or a message, a text, packed numbers, a number of fixed size
Message = Mapping[int, Sequence[Value]]  #: the values of each field, by its number


def read(data: Value) -> Message:
    """Return the fields of a message by their numbers."""
    found: dict[int, list[Value]] = {}
    for count, (number, value) in enumerate(_fields(_bytes(data))):
        if count == MOST_FIELDS:
            raise ValueError(f"over {MOST_FIELDS} fields")
        found.setdefault(number, []).append(value)
    return found


def messages(message: Message, number: int) -> list[Message]:
    """Return the messages of a repeated field."""
    return [read(it) for it in message.get(number, ())]


def embedded(outer: Message, number: int) -> Message:
    """Return the message of a field; an empty one where it is not set."""
    return read(outer.get(number, (b"",))[-1])


def texts(message: Message, number: int) -> list[str]:
    """Return the texts of a repeated field, as they can be shown anywhere."""
    return [printable(_bytes(it).decode(errors="replace")) for it in message.get(number, ())]


def text(message: Message, number: int) -> str:
    """Return the text of a field, as it can be shown anywhere."""
    last = message.get(number, (b"",))[-1]
    return printable(_bytes(last).decode(errors="replace"))


def numbers(message: Message, number: int) -> list[int]:
    """Return the numbers of a repeated field, packed into one or each by itself."""
    return [it for value in message.get(number, ()) for it in _unpacked(value)]


def number(message: Message, number: int) -> int:
    """Return the number of a field, without a sign."""
    value = message.get(number, (0,))[-1]
    if not isinstance(value, int):
        raise ValueError("a message where a number belongs")  # noqa: TRY004 - of the wire
    return value


def field(number: int, value: Value | str) -> bytes:
    """Return a field: a number, not negative; a text; or a message, its fields joined."""
    if isinstance(value, int):
        return _written(number << 3 | VARINT) + _written(value)
    data = value.encode() if isinstance(value, str) else value
    return _written(number << 3 | LENGTH) + _written(len(data)) + data


def _written(number: int) -> bytes:
    """Return a number of variable length."""
    parts = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - what a byte has room for
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*parts, number))


def _fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Yield the numbers and values of a message's fields."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        kind = tag & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield tag >> 3, value
            continue
        if kind == LENGTH:
            size, place = _varint(message, place)
        else:
            size = SIZES.get(kind, len(message))
        if place + size > len(message):
            raise ValueError(f"field {tag >> 3} is cut off")
        yield tag >> 3, message[place : place + size]
        place += size


def _varint(message: bytes, place: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next field begins."""
    number = 0
    for shift in range(0, MOST_BITS + 6, 7):
        if place == len(message):
            raise ValueError("a number is cut off")
        byte = message[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last one
            return number & (2**MOST_BITS - 1), place
    raise ValueError(f"a number of over {MOST_BITS} bits")


def _unpacked(value: Value) -> Iterator[int]:
    if isinstance(value, int):
        yield value
        return
    place = count = 0
    while place < len(value):
        if count == MOST_FIELDS:
            raise ValueError(f"over {MOST_FIELDS} numbers")
        number, place = _varint(value, place)
        count += 1
        yield number


def _bytes(value: Value) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a message belongs")  # noqa: TRY004 - of the wire
    return value
