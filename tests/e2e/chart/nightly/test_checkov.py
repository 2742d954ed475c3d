"""The chart, judged by checkov: what it has to say about any option is here, with the reason."""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.e2e.chart import tools
from tests.e2e.chart.rendering import OPTIONS, rendered

#: Its pins are its own: with them the daemon's packages could not be in one environment.
CHECKOV = "checkov==3.3.30"

DAEMON, TEST, ANY = {"DaemonSet"}, {"Pod"}, {"DaemonSet", "Pod"}

#: What checkov would have otherwise, whose objects it says it of, and why they stay so.
EXPLAINED = {
    # A CPU limit throttles the daemon when many jobs start at once, and holds all of them up.
    "CKV_K8S_11": ANY,
    # IfNotPresent is the default: a node without the registry must start its daemon again.
    "CKV_K8S_15": ANY,
    # Which digest is the user's to say (image.digest): the chart is not published with an image.
    "CKV_K8S_43": ANY,
    # CHOWN is the init step's: the folder that kubelet makes is root's, and the daemon is not root.
    "CKV_K8S_25": DAEMON,
    # Only where the audit was asked for; values.yaml says what for.
    "CKV_K8S_17": DAEMON,
    # Only where it is to pin: what capabilities a pod adds count for no other user than root.
    "CKV_K8S_23": DAEMON,
    "CKV_K8S_40": DAEMON,
    # The pod of `helm test` asks once and ends.
    "CKV_K8S_8": TEST,
    "CKV_K8S_9": TEST,
    # A NetworkPolicy is there for the asking, and of the daemon: the test's pod listens nowhere.
    "CKV2_K8S_6": TEST,
}


def test_checkov_finds_nothing_that_is_not_explained(tmp_path: Path) -> None:
    for option in OPTIONS:
        (tmp_path / f"{option}.yaml").write_text(rendered(option))
    checkov = tools.python_with(CHECKOV) / "checkov"
    options = ("--framework=kubernetes", "--skip-download", "--compact", "--quiet", "--output=json")
    command = (str(checkov), f"--directory={tmp_path}", *options)
    report = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)
    found = defaultdict(set)
    for failed in report["results"]["failed_checks"]:
        found[failed["check_id"]].add(failed["resource"].partition(".")[0])
    assert found == EXPLAINED
    assert report["summary"]["parsing_errors"] == 0
    assert report["summary"]["passed"] > 100 * len(OPTIONS)
