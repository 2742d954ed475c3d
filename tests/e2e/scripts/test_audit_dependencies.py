"""scripts/audit-dependencies: what could not be asked is not called clean."""

import os

from tests.support.paths import REPOSITORY
from tests.support.tiny import ran


def test_what_could_not_be_asked_is_not_called_clean() -> None:
    env = {**os.environ, "OSV_URL": "http://127.0.0.1:1/v1/query", "NO_PROXY": "127.0.0.1"}
    done = ran(REPOSITORY / "scripts/audit-dependencies", env=env)
    assert (done.status, done.stdout) == (3, "")
    assert done.lines[-1].startswith("deploy/image/*.txt was NOT AUDITED: ")
