"""`affinityd init` writes a pod's files: with a daemon, with a late daemon, without a daemon."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.children import children_of
from tests.support.daemons import Daemon, eventually, running
from tests.support.tiny import Ended, affinityd


def init(
    to: Path, *words: str, socket: Path | None = None, env: Mapping[str, str] | None = None
) -> Ended:
    where = ["--socket", str(socket)] if socket else []
    return affinityd("init", "--to", str(to), *where, *words, env=env)


def contents(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def test_a_pod_is_given_the_plan_of_the_whole_node(daemon: Daemon, tmp_path: Path) -> None:
    to = tmp_path / "to"
    before = os.umask(0o077)
    try:
        done = init(to, socket=daemon.socket, env={"AFFINITYD_MODE": "unique-contiguous"})
    finally:
        os.umask(before)
    says = f"{to} has the CPUs near 8 GPUs, from the daemon at {daemon.socket}"
    assert done == Ended(0, f"affinityd init: {says}\n", "")
    files = contents(to)
    plan = daemon.plan("mode=unique_contiguous&share=node&whose=node")
    assert json.loads(files["plan.json"]) == plan
    gpus = {
        f"gpu/{name}": f"{rank['cpulist']} {rank['locality']}\n"
        for rank in plan["ranks"]
        for name in (rank["gpu"]["index"], *rank["gpu"]["names"])
    }
    assert {name: text for name, text in files.items() if "/" in name} == gpus
    assert files.keys() - gpus.keys() == {"plan.json", "run", "pinning.sh", "settings"}
    # Every user may read the files, whatever the umask.
    for path in (to, *to.rglob("*")):
        runs = path.is_dir() or path.name == "run"
        assert stat.S_IMODE(path.stat().st_mode) == (0o755 if runs else 0o644)


@pytest.mark.parametrize(
    ("settings", "query"),
    [
        ("", "mode=node"),
        ("SCOPE=socket", "mode=all&scope=socket"),
        ("MODE=single_unique SHARE=requested", "mode=single_unique&share=requested"),
        # Settings that may refuse a container's plan do not apply to the node's plan.
        ("MODE=exclusive STRICT=true MIN_PHYSICAL_CORES=99", "mode=exclusive&share=node"),
    ],
)
def test_settings_of_init_choose_a_plan(
    daemon: Daemon, tmp_path: Path, settings: str, query: str
) -> None:
    env = {f"AFFINITYD_{name}": text for name, text in (it.split("=") for it in settings.split())}
    assert init(tmp_path, socket=daemon.socket, env=env).stderr == ""
    ours, theirs = json.loads((tmp_path / "plan.json").read_text()), daemon.plan(query)
    assert [it["cpulist"] for it in ours["ranks"]] == [it["cpulist"] for it in theirs["ranks"]]
    lines = {f'[ -n "${{{name}-}}" ] || {name}={text}' for name, text in env.items()}
    assert set((tmp_path / "settings").read_text().splitlines()[1:]) == lines


def test_settings_reach_a_shell_unchanged(daemon: Daemon, tmp_path: Path) -> None:
    odd = tmp_path / "it's a $folder; exit 3"
    odd.mkdir()
    (odd / "s").symlink_to(daemon.socket)
    init(tmp_path / "to", socket=odd / "s")
    script = f'. {tmp_path}/to/settings; printf %s "$AFFINITYD_SOCKET"'
    assert subprocess.check_output(["sh", "-c", script], text=True) == str(odd / "s")


def test_the_settings_contain_the_service_s_address(daemon: Daemon, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{daemon.lines[0].rsplit(':', 1)[1]}"
    env = {"AFFINITYD_URL": f"{url.replace('127.0.0.1', 'localhost')}/"}
    env["AFFINITYD_SOCKET"] = "/nobody"
    done = init(tmp_path, "--timeout=5", env=env)
    assert done.stdout.endswith(f"from the daemon at {url}\n")
    line = f'[ -n "${{AFFINITYD_URL-}}" ] || AFFINITYD_URL={url}\n'
    assert line in (tmp_path / "settings").read_text()


def test_a_malformed_url_is_refused_or_left_out(tree: Path, tmp_path: Path) -> None:
    reason = "'affinityd:9466' is not http://HOST:PORT; write it like http://affinityd:9466"
    for words, line in (
        (["--to=to", "--url=affinityd:9466"], f"url: {reason}"),
        (["--to="], "to is empty; name a folder, like /affinity"),
    ):
        assert affinityd("init", *words) == Ended(2, "", f"affinityd init: {line}\n")
    env = {"AFFINITYD_URL": "affinityd:9466", "AFFINITYD_ROOT": str(tree)}
    done = init(tmp_path / "to", "--timeout=0.2", socket=tmp_path / "nobody", env=env)
    assert (done.status, done.lines[0]) == (0, f"affinityd init: AFFINITYD_URL: {reason}")
    assert "AFFINITYD_URL" not in (tmp_path / "to/settings").read_text()


def test_init_waits_for_a_daemon_that_starts_late(tree: Path, tmp_path: Path) -> None:
    env = {**os.environ, "AFFINITYD_SOCKET": str(tmp_path / "affinityd.sock")}
    command = [sys.executable, "-m", "affinityd", "init", f"--to={tmp_path}/to", "--timeout=60"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as waiting:
        eventually((tmp_path / "to/settings").exists, "the settings are written at once")
        assert waiting.poll() is None
        with running(tmp_path, "--root", str(tree)):
            assert "from the daemon at" in waiting.communicate()[0]
    assert waiting.returncode == 0


def test_without_a_daemon_sysfs_or_node_json_is_read(tree: Path, tmp_path: Path) -> None:
    env, to, gone = {"AFFINITYD_ROOT": str(tree)}, tmp_path / "to", tmp_path / "no"
    done = init(to, "--timeout=0.3", socket=gone, env=env)
    source = f"sysfs: no daemon at {gone}: No such file or directory"
    assert done == Ended(0, f"affinityd init: {to} has the CPUs near 8 GPUs, from {source}\n", "")
    assert (to / "gpu/minor:7").read_text() == "48-63,176-191 local\n"
    with running(tmp_path / "run", "--root", str(tree), "--reserved-cpus", "48-55") as daemon:
        socket = daemon.socket
    assert "from node.json: no daemon at" in init(to, "--timeout=0.3", socket=socket).stdout
    assert (to / "gpu/minor:7").read_text() == "56-63,176-191 local\n"


def test_a_refusal_leaves_the_script_and_no_plan(daemon: Daemon, tmp_path: Path) -> None:
    done = init(tmp_path, socket=daemon.socket, env={"AFFINITYD_MODE": "best"})
    assert done.status == 0
    assert done.lines[0].startswith("affinityd init: mode: 'best' is not one of all, single")
    assert done.lines[0].endswith(f"; no plan was left in {tmp_path}: programs will ask a daemon")
    assert set(contents(tmp_path)) == {"run", "pinning.sh", "settings"}


def test_a_file_that_cannot_be_written_is_named(daemon: Daemon, tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    done = init(tmp_path, socket=daemon.socket)
    reason = f"{tmp_path}/plan.json cannot be written: Is a directory"
    left = f"no plan was left in {tmp_path}: programs will ask a daemon"
    assert (done.status, done.lines) == (0, [f"affinityd init: {reason}; {left}"])


def test_a_pod_whose_settings_cannot_be_read_starts_and_does_not_pin(
    daemon: Daemon, tmp_path: Path
) -> None:
    (tmp_path / "conf").write_text("what is this\n")
    env = {"AFFINITYD_CONFIG": str(tmp_path / "conf")}
    done = init(tmp_path / "to", socket=daemon.socket, env=env)
    assert (done.status, len(done.lines)) == (0, 1)
    assert (tmp_path / "to/settings").read_text().endswith("heed off\n")


def test_an_init_container_ends_at_once_when_its_pod_is_deleted(tmp_path: Path) -> None:
    """`init` is pid 1 of a pid namespace here, like a container's first process."""
    words = [sys.executable, "-m", "affinityd", "init", f"--to={tmp_path}/to", "--timeout=600"]
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode:
        pytest.skip("unshare is refused here")
    env = {**os.environ, "AFFINITYD_SOCKET": str(tmp_path / "nobody")}
    with subprocess.Popen([*alone, *words], env=env, stderr=subprocess.DEVNULL) as outer:
        eventually((tmp_path / "to/settings").exists, "it waits for a daemon")
        (inner,) = children_of(outer.pid)
        os.kill(inner, signal.SIGTERM)
        assert outer.wait(60) == 143
