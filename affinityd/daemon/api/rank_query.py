"""The query of a plan for one rank, divided into its job's part and the rank's number."""

from __future__ import annotations

import re

#: The bytes before and after the parameter `rank`: they are the same for all ranks of a job.
JobQuery = tuple[bytes, bytes]

#: As clients write it. Any other spelling, like rank=00, is one for the app.
_RANK = re.compile(rb"(?:^|&)rank=(0|[1-9][0-9]{0,4})(?=&|$)")


def job_and_rank(query: bytes) -> tuple[JobQuery, int] | None:
    """Return both parts; None for a query that names no rank, or several.

    If a rank is left in the job's part, the app refuses the query, with any number.
    """
    found = _RANK.search(query)
    if found is None:
        return None
    return (query[: found.start()], query[found.end() :]), int(found[1])
