"""Frozen dataclasses on the way of `affinityd exec`: none of their methods is compiled at a start.

To import `dataclasses` takes twice as long as to start Python, and each class of it a tenth of
that. A record is declared as a frozen dataclass is, and is one to type checkers and `dataclasses`.
"""

# ruff: noqa: ANN001, ANN003, ANN201, ANN202, ANN204, ANN401 - type checkers read other lines

from __future__ import annotations

from _operator import attrgetter

__all__ = ["Record", "cached_property", "compile_records", "replace"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import replace
    from functools import cached_property
    from typing import Any, ClassVar, NoReturn

    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_how):
        """See PEP 681: it is for type checkers alone."""
        return lambda kind: kind

    def replace(record, **changes):
        """Return a record with other values of some fields."""
        return record.__class__(**{**record.__getstate__(), **changes})

    class cached_property:  # noqa: N801 - as `functools` has it
        """A value that follows from a record's fields, found once."""

        def __init__(self, find):
            self._find = find
            self.__doc__ = find.__doc__

        def __set_name__(self, _kind, name):
            """Remember the value's name."""
            self._name = name

        def __get__(self, record, _kind):
            """Return the value, which is kept in the record's dictionary."""
            if record is None:
                return self
            value = record.__dict__[self._name] = self._find(record)
            return value


#: The methods of a record, in a class of its name, by which errors call them.
METHODS = """
class {name}:
    def __init__(self, {parameters}):
        _its = self.__dict__
        {assignments}
    def __eq__(self, other):
        return ({own}) == ({others}) if self.__class__ is other.__class__ else NotImplemented
    def __hash__(self):
        return hash(({own}))
made.append({name})
"""


class OfDataclass:
    """An attribute by which `dataclasses` knows its own, found when it is asked for."""

    def __set_name__(self, _kind: type, name: str) -> None:
        """Remember the attribute's name."""
        self._name = name

    def __get__(self, _record: object, kind: type[Record]) -> Any:
        """Return the attribute of a dataclass with the same fields."""
        return getattr(kind.as_dataclass(), self._name)


@dataclass_transform(frozen_default=True)
class Record:
    """A value with the fields that its class annotates. Equal fields make records equal."""

    __dataclass_fields__ = OfDataclass()
    __dataclass_params__ = OfDataclass()
    if TYPE_CHECKING:  # readers of annotations at run time would not find ClassVar
        _dataclass: ClassVar[type | None]
        _fields: ClassVar[dict[str, str]]  #: name → type
        _defaults: ClassVar[dict[str, Any]]
        _values: ClassVar[Any]  #: returns the fields' values
    _fields, _defaults = {}, {}

    def __init_subclass__(cls) -> None:
        """Find the fields of the class."""
        own = cls.__annotations__
        cls._fields = {**cls._fields, **own}
        cls._defaults = {**cls._defaults, **{it: vars(cls)[it] for it in own if it in vars(cls)}}
        cls._values = attrgetter(*cls._fields)
        cls._dataclass = None

    @classmethod
    def as_dataclass(cls) -> type:
        """Return a dataclass with the same fields."""
        if cls._dataclass is None:
            from dataclasses import dataclass, field  # noqa: PLC0415 - the reason for this module

            members = {"__annotations__": cls._fields, "__module__": cls.__module__}
            for name, value in cls._defaults.items():
                is_hashable = value.__class__.__hash__ is not None
                members[name] = value if is_hashable else field(default_factory=value.copy)
            made = type(cls.__name__, (), members)
            cls._dataclass = dataclass(frozen=True)(made)
        return cls._dataclass

    @classmethod
    def methods(cls, place: int) -> str:
        """Return its methods, as Python's text, where `kinds[place]` is the class."""
        own = "".join(f"self.{it}, " for it in cls._fields)
        return METHODS.format(
            name=cls.__name__,
            parameters=", ".join(
                f"{it}=kinds[{place}]._defaults['{it}']" if it in cls._defaults else it
                for it in cls._fields
            ),
            assignments="; ".join(f"_its['{it}'] = {it}" for it in cls._fields),
            own=own,
            others=own.replace("self.", "other."),
        )

    def __init__(self, *values: object, **named: object) -> None:
        """Set the fields, by place or by name. Raises TypeError unless each has a value."""
        its, given = self.__dict__, dict(zip(self._fields, values, strict=False), **named)
        its.update(self._defaults)
        its.update(given)
        if its.keys() != self._fields.keys() or len(given) != len(values) + len(named):
            words = ", ".join([*map(repr, values), *(f"{it}=…" for it in named)])
            kind, fields = self.__class__.__name__, ", ".join(self._fields)
            raise TypeError(f"{kind}({words}) does not give each of {fields} once")

    def __getstate__(self) -> dict[str, object]:
        """Return the fields' values: those derived from them may be added by another thread."""
        return {it: self.__dict__[it] for it in self._fields}

    def __setattr__(self, name: str, _value: object) -> NoReturn:
        """Refuse: a record is frozen."""
        raise AttributeError(f"{name} of a {self.__class__.__name__} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse, as well."""
        raise AttributeError(f"{name} of a {self.__class__.__name__} cannot be deleted")

    def __eq__(self, other: object) -> bool:
        """Whether the other is of the same class, with equal fields."""
        if self.__class__ is not other.__class__:
            return NotImplemented
        return bool(self._values(self) == other._values(other))

    def __hash__(self) -> int:
        """Return a number that equal records have in common."""
        return hash(self._values(self))

    def __repr__(self) -> str:
        """Return it as it could be made again."""
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__getstate__().items())
        return f"{self.__class__.__name__}({fields})"


def compile_records(*kinds: type[Record]) -> None:
    """Compile the methods of records, or of all, in a process that makes them by the thousand.

    They take a third of the time of a frozen dataclass's, and to compile them a quarter.
    """
    kinds = kinds or tuple(Record.__subclasses__())
    names: dict[str, Any] = {"kinds": kinds, "made": []}
    exec("".join(kind.methods(place) for place, kind in enumerate(kinds)), names)  # noqa: S102 - fields of this package's classes
    for kind, made in zip(kinds, names["made"], strict=True):
        for name in {"__init__", "__eq__", "__hash__"} - vars(kind).keys():
            setattr(kind, name, vars(made)[name])
