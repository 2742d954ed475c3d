"""Reading JSON that somebody else wrote: each piece knows its place, for an error to name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from affinityd.cpuset import CpuSet, parse_list
from affinityd.text import quote

T = TypeVar("T")

#: How much of a wrong value an error shows.
SHOWN = 40

#: The largest number that any machine has: 64 bits, of memory in KiB.
MAX_NUMBER = 2**74 - 1
MAX_DIGITS = len(str(MAX_NUMBER))


@dataclass(frozen=True)
class JsonValue:
    """A piece of JSON, and its path for people: `topology.gpus[0].index`.

    Everything raises ValueError, one line that quotes the path and the value, for what it is not.
    """

    value: object
    where: str

    def __getitem__(self, name: str) -> JsonValue:
        """Return a field of an object."""
        fields = self._fields()
        if name not in fields:
            raise ValueError(f"{self.where} has no {name!r}")
        return JsonValue(fields[name], f"{self.where}.{name}")

    def get(self, name: str) -> JsonValue | None:
        """Return a field of an object; None where it is missing or null."""
        fields = self._fields()
        return None if fields.get(name) is None else self[name]

    def each(self, read: Callable[[JsonValue], T]) -> tuple[T, ...]:
        """Return a list's items."""
        if not isinstance(self.value, list):
            raise self._not("a list")
        return tuple(
            read(JsonValue(item, f"{self.where}[{place}]")) for place, item in enumerate(self.value)
        )

    def by_number(self, read: Callable[[JsonValue], T]) -> Iterator[tuple[int, T]]:
        """Yield the fields of an object whose names are numbers."""
        for name, value in self._fields().items():
            if not (name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS):
                raise ValueError(f"{self.where}: {quote(name)} is not a number")
            yield int(name), read(JsonValue(value, f"{self.where}.{name}"))

    def maybe(self, read: Callable[[JsonValue], T]) -> T | None:
        """Return None for null."""
        return None if self.value is None else read(self)

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.value, str):
            raise self._not("a string")
        return self.value

    def number(self) -> int:
        """Return a whole number; true and false are none."""
        if not isinstance(self.value, int) or isinstance(self.value, bool):
            raise self._not("a whole number")
        if abs(self.value) > MAX_NUMBER:
            raise self._not(f"a number up to {MAX_NUMBER}")
        return self.value

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self.value, bool):
            raise self._not("true or false")
        return self.value

    def cpus(self) -> CpuSet:
        """Return the CPUs of a cpulist."""
        try:
            return parse_list(self.text())
        except ValueError as error:
            raise ValueError(f"{self.where}: {error}") from None

    def _fields(self) -> Mapping[str, object]:
        if not isinstance(self.value, dict):
            raise self._not("an object")
        return self.value

    def _not(self, kind: str) -> ValueError:
        return ValueError(f"{self.where} is {repr(self.value)[:SHOWN]}, not {kind}")
