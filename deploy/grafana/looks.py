"""Units, and colours that mean something: the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import BigValueColorMode

from deploy.grafana.queries import LOCAL, MIXED, REMOTE, SEVERITY, UNKNOWN, UNPINNED

BYTES, BYTES_PER_SECOND = "bytes", "Bps"
COUNT, SHARE, SECONDS, HOURS, AGO = "none", "percentunit", "s", "h", "dateTimeFromNow"
PERCENT = "percent"  #: of 100, where SHARE is of 1
REQUESTS_PER_SECOND, CPUS = "reqps", "short"

GREEN, YELLOW, ORANGE, RED, GREY, BLUE = "green", "yellow", "orange", "red", "#808080", "blue"

PLACEMENTS = {LOCAL: GREEN, UNKNOWN: GREY, UNPINNED: YELLOW, MIXED: ORANGE, REMOTE: RED}


@dataclass(frozen=True)
class Levels:
    """From which value on which colour is shown."""

    steps: Sequence[tuple[float | None, str]]  #: None: from the lowest on

    @property
    def config(self) -> builders.ThresholdsConfig:
        """As a panel takes them."""
        return (
            builders.ThresholdsConfig()
            .mode(models.ThresholdsMode.ABSOLUTE)
            .steps([models.Threshold(value=value, color=color) for value, color in self.steps])
        )

    @property
    def value(self) -> dict[str, object]:
        """As a column of a table takes them."""
        steps = [{"value": value, "color": color} for value, color in self.steps]
        return {"mode": "absolute", "steps": steps}

    @property
    def color_mode(self) -> BigValueColorMode:
        """Colour is for what is judged."""
        judged = len(self.steps) > 1
        return BigValueColorMode.VALUE if judged else BigValueColorMode.NONE


PLAIN = Levels([(None, BLUE)])
NONE_IS_GOOD = Levels([(None, GREEN), (1, RED)])
NONE_IS_BETTER = Levels([(None, GREEN), (1, YELLOW)])
#: A few per cent are threads of the system; a fifth or more is worth fixing.
SHARE_LEVELS = Levels([(None, GREEN), (0.05, YELLOW), (0.2, RED)])


def words(meanings: Mapping[int, tuple[str, str]]) -> models.ValueMap:
    """Return what shows numbers as words: number → word and colour."""
    results = {
        str(number): models.ValueMappingResult(text=word, color=color, index=place)
        for place, (number, (word, color)) in enumerate(meanings.items())
    }
    return models.ValueMap(options=results)


#: The numbers of `queries.worst_placement`.
WORST = words(
    {0: ("no process", "transparent")}
    | {severity: (name, PLACEMENTS[name]) for name, severity in SEVERITY.items()}
)
#: /proc/sys/kernel/numa_balancing
BALANCING = words({0: ("off", GREEN), 1: ("on", RED), 2: ("tiering", YELLOW), 3: ("on", RED)})
