"""`affinityd fleet`, asked of a real Prometheus that scrapes a real daemon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from affinityd.fleet.prometheus import Prometheus as Client
from tests.e2e.prometheus.audited_node import audited
from tests.e2e.prometheus.server import Prometheus, running_prometheus
from tests.support.cpusets import needs_cpuset
from tests.support.daemons import eventually
from tests.support.ports import free_port

NODE = "127.0.0.1"  #: as the scrape's relabeling calls it
#: Jobs of the audited node → the cause of their mismatch; job 80 is near its GPU.
FAR = {"77": "allocation", "78": "mask", "79": "unpinned"}

#: Labels that a target on Kubernetes has: those of the daemon's pod, and of no job.
OF_DAEMON = {"namespace": "gpu", "pod": "affinityd-x7k2p", "container": "affinityd"}
USER = {"admin": "$2b$12$hNf2lSsxfm0.i4a.1kVpSOVyBCfIB51VRjgBUyv6kdnyTlgWj81Ay"}  #: "test"
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=prometheus "
    "-addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)


def fleet(
    url: str, *options: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "affinityd", "fleet", "--prometheus", url, *options]
    its = {**os.environ, **(env or {})}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=its)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Prometheus]]:
    """Two that scrape the same daemon, by whether they have the rules."""
    folder, address = tmp_path_factory.mktemp("report"), f"127.0.0.1:{free_port()}"
    targets = [{"targets": [address], "labels": OF_DAEMON}]
    with (
        audited(folder / "audited", address),
        running_prometheus(folder / "rules", targets) as with_rules,
        running_prometheus(folder / "none", targets, rules=()) as without,
    ):
        yield {"rules": with_rules, "daemons": without}


@needs_cpuset
@pytest.mark.parametrize("source", ["rules", "daemons"])
def test_jobs_that_were_placed_far_are_rows_and_the_others_are_in_the_sum(
    servers: Mapping[str, Prometheus], source: str
) -> None:
    def document() -> Any:  # noqa: ANN401 - a document
        done = fleet(servers[source].url, "--since", "1m", "--json")
        return json.loads(done.stdout or '{"rows": [], "source": ""}')

    def is_right() -> bool:  # at the beginning the rules have recorded less
        found = document()
        return (found["source"], len(found["rows"])) == (source, len(FAR))

    eventually(is_right, f"three jobs were placed far, by the series of {source}")
    found = document()
    for row in found["rows"]:
        job = row["labels"]["job_id"]
        assert row["labels"] == {"scheduler": "slurm", "job_id": job}
        assert (list(row["causes"]), row["nodes"], row["gpus"]) == ([FAR[job]], [NODE], 1)
        assert 0.9 < row["far_gpu_hours"] / row["gpu_hours"] <= 1
    assert found["gpu_hours"] > 1.1 * sum(row["gpu_hours"] for row in found["rows"])


@needs_cpuset
@pytest.mark.parametrize(
    ("by", "rows"),
    [
        ("job", ["slurm 77", "slurm 78", "slurm 79"]),
        ("namespace", ["-"]),
        ("node", [NODE]),
        ("cause", ["slurm allocation", "slurm mask", "slurm unpinned"]),
    ],
)
def test_the_table_has_a_row_for_each(
    servers: Mapping[str, Prometheus], by: str, rows: list[str]
) -> None:
    def names() -> list[str]:
        done = fleet(servers["rules"].url, "--since=1m", "--by", by)
        table, is_summed, _ = done.stdout.partition(" GPU-hours of jobs were far (")
        head, *lines = (line.partition("  ")[0] for line in table.splitlines()[:-1] or [""])
        return [head, *sorted(lines)] if is_summed and done.returncode == 1 else []

    eventually(lambda: names() == [by, *rows], f"a row each: {rows}")


@needs_cpuset
def test_a_query_is_of_the_moment_that_it_names(servers: Mapping[str, Prometheus]) -> None:
    (sample,) = Client(servers["rules"].url).query("vector(time())", 1e9)
    assert (sample.number, sample.value[0]) == (1e9, 1e9)


def test_tls_and_credentials_are_as_the_server_wants_them(tmp_path: Path) -> None:
    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True)
    web, headers = tmp_path / "web.yaml", tmp_path / "headers"
    tls = {"cert_file": "cert.pem", "key_file": "key.pem"}
    web.write_text(yaml.safe_dump({"tls_server_config": tls, "basic_auth_users": USER}))
    headers.write_text("# of the report\nAuthorization: Basic YWRtaW46dGVzdA==\n")
    trusted = {"SSL_CERT_FILE": f"{tmp_path}/cert.pem"}
    with running_prometheus(tmp_path / "server", [], rules=(), web=web) as server:
        known = f"--header-file={headers}"

        def says(words: str, *options: str, **env: str) -> bool:
            done = fleet(server.url, *options, env=env)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
            return words in done.stderr

        eventually(lambda: says("certificate verify failed", known), "it is not trusted")
        assert says("answered 401 Unauthorized; --header-file", **trusted)
        assert says("it has no series of affinityd", known, **trusted)
