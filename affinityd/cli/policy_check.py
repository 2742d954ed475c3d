"""Checks a policy file before a daemon reads it: what each rule matches and does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from affinityd.cpuset import several
from affinityd.daemon.policy_document import KEYS, SETTINGS, document, parse, shown
from affinityd.enforce.policy.file import MAX_FILE, decoded
from affinityd.enforce.policy.policy import PolicyError
from affinityd.errors import InvalidRequestError
from affinityd.text import count

#: Keys that match a process's environment, which takes privileges to read.
OF_ENVIRONMENTS = ("partition", "account", "environment")

#: Settings that are not printed by name and value.
OF_THEIR_OWN = ("mode", "observe", "leave")

Table = Mapping[str, Any]


def check(path: str) -> Iterator[str]:
    """Return lines that describe a policy. Raises InvalidRequestError if it is invalid."""
    try:
        with Path(path).open("rb") as file:
            text = decoded(file.read(MAX_FILE + 1))
        parse(text)
        return _said(path, document(text).model_dump(exclude_none=True))
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}") from None
    except PolicyError as error:
        raise InvalidRequestError(f"{path}: {error}") from None


def _said(path: str, document: Table) -> Iterator[str]:
    rules = document["rule"]
    yield f"{path}: {count(len(rules), 'rule')}"
    for number, rule in enumerate(rules, start=1):
        matched = " and ".join(_matched(key, rule[key]) for key in KEYS if key in rule)
        yield f"rule {number}: {matched}: {_done({**document, **rule})}"
    yield f"{'all others' if rules else 'all jobs'}: {_done(document)}"
    asking = [
        number
        for number, rule in enumerate(rules, start=1)
        if not rule.keys().isdisjoint(OF_ENVIRONMENTS)
    ]
    if asking:
        yield (
            f"note: for {several('rule', asking)} environments must be readable: the daemon needs "
            "CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH"
        )


def _matched(key: str, value: dict[str, list[object]] | list[object]) -> str:
    """Return the condition of a key: `account 'debug' or 'bench-*'`."""
    if isinstance(value, dict):
        return " and ".join(f"{key} {name} {_any(globs)}" for name, globs in value.items())
    return f"{key} {_any(value)}"


def _any(values: list[object]) -> str:
    return " or ".join(map(shown, values))


def _done(settings: Table) -> str:
    """Return the treatment of a process."""
    if settings.get("leave"):
        return "left alone"
    mode = settings.get("mode")
    others = [name for name in SETTINGS if name in settings and name not in OF_THEIR_OWN]
    said = [f"{name} {settings[name]}" for name in others]
    said += ["only observed"] if settings.get("observe") else []
    return ", ".join([f"mode {mode}" if mode else "the site's mode", *said])
