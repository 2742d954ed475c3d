"""What AFFINITYD may say, and what it means; and what it may not."""

from __future__ import annotations

WORDS = {
    "off": ("off", "OFF", "Off", "0", "no", "No", "false", "False"),
    "observe": ("observe", "Observe", "OBSERVE"),
    "on": ("on", "ON", "1", "yes", "true", ""),
}
OTHERS = ("obsreve", "offline", "on ", "2", "*", "$(id)", "of\nf")
