"""The switch AFFINITYD=on|observe|off: whether plans are applied. Pure.

A job's environment, the settings file and the daemon may each set it; the least of them counts.
`slurm/task_prolog.sh` and `kubernetes/run.sh` read the same words.
"""

from __future__ import annotations

from affinityd.errors import InvalidRequestError
from affinityd.text import quote

VARIABLE = "AFFINITYD"

OFF = "off"  #: nothing is touched
OBSERVE = "observe"  #: no mask is changed; the plan is in the environment, and the daemon counts it
ON = "on"
SWITCHES = (OFF, OBSERVE, ON)  #: from the least

_WORDS = {
    **dict.fromkeys(("off", "0", "no", "false"), OFF),
    "observe": OBSERVE,
    **dict.fromkeys(("on", "1", "yes", "true", ""), ON),
}


def read(text: str, name: str = VARIABLE) -> str:
    """Return the meaning of a value; an empty one is on. Raises InvalidRequestError."""
    try:
        return _WORDS[text.lower()]
    except KeyError:
        raise InvalidRequestError(f"{name}: {quote(text)} is none of on, observe, off") from None


def read_or_off(text: str) -> str:
    """Return the meaning of another process's value; an unknown word counts as off."""
    try:
        return read(text)
    except InvalidRequestError:
        return OFF


def least(*switches: str) -> str:
    """Return the switch that counts of several."""
    return min(switches, key=SWITCHES.index)
