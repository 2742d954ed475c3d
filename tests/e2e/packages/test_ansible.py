"""deploy/ansible on a node that is a root of Debian; a script in place of `ssh` enters the root."""

import os
import re
import sys
from pathlib import Path

from tests.e2e.packages.roots import built, debian
from tests.support.paths import REPOSITORY
from tests.support.tiny import Ended, printed, ran

ANSIBLE = REPOSITORY / "deploy/ansible"
PROGRAMS = Path(sys.executable).parent
ENVIRONMENT = {
    "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
    "HOME": os.environ["HOME"],
    "LC_ALL": "C.UTF-8",
    "ANSIBLE_PIPELINING": "true",
    "ANSIBLE_SSH_TRANSFER_METHOD": "piped",
}
SSH = """\
#!/bin/sh
for command; do :; done
exec chroot {root} sh -c "$command"
"""
SLURM_CONF = "ClusterName=site\n"


class Site:
    """A site of one node, which has GPUs."""

    def __init__(self, folder: Path) -> None:
        self.root = debian("bookworm", folder, "systemd")
        self.packages = next(iter(built("deb", folder / "dist").values())).parent
        self.ssh, self.inventory = folder / "ssh", folder / "inventory"
        self.ssh.write_text(SSH.format(root=self.root.path))
        self.ssh.chmod(0o755)
        self.inventory.write_text("[slurm:children]\ngpu\n[gpu]\nnode1\n")
        self.slurm_conf = self.root.path / "etc/slurm/slurm.conf"
        self.slurm_conf.parent.mkdir()

    def play(self, *variables: str) -> Ended:
        values = (f"affinityd_files={self.packages}", "ansible_become=false", *variables)
        command = ["ansible-playbook", f"--inventory={self.inventory}", "site.yml"]
        environment = {**ENVIRONMENT, "ANSIBLE_SSH_EXECUTABLE": os.fspath(self.ssh)}
        command += [f"--extra-vars={it}" for it in values]
        return ran(*command, cwd=ANSIBLE, env=environment)


def changed(done: Ended) -> int:
    assert done.status == 0, done.stdout + done.stderr
    return int(re.findall(r"changed=(\d+)", done.stdout)[0])


def test_a_site_is_installed_and_a_second_run_changes_nothing(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.slurm_conf.write_text("Prolog=/etc/slurm/site.sh\n")
    refused = site.play()
    assert refused.status != 0
    assert "names scripts of the site" in refused.stdout

    site.slurm_conf.write_text(SLURM_CONF)
    shown = site.play()
    assert changed(shown) == 1
    assert "+TaskProlog=/etc/slurm/affinityd/task_prolog.sh" in shown.stdout
    assert site.slurm_conf.read_text() == SLURM_CONF
    wants = site.root.path / "etc/systemd/system/multi-user.target.wants/affinityd.service"
    assert wants.is_symlink()

    (site.root.path / "etc/slurm/affinityd/pinning.sh").chmod(0o600)
    write = "affinityd_write_slurm_conf=true"
    assert site.play(write).status != 0
    assert site.slurm_conf.read_text() == SLURM_CONF, "a job would drain the node"

    (site.root.path / "etc/slurm/affinityd/pinning.sh").chmod(0o644)
    settings = '{"affinityd_settings": {"AFFINITYD": "observe"}}'
    assert changed(site.play(write, settings)) == 2
    assert "\nAFFINITYD=observe\n" in (site.root.path / "etc/affinityd.conf").read_text()
    lines = (REPOSITORY / "slurm/slurm.conf").read_text().splitlines()
    ours = [line for line in lines if not line.startswith("#")]
    assert site.slurm_conf.read_text().splitlines() == [SLURM_CONF.strip(), *ours]
    assert changed(site.play(write)) == 0


def test_ansible_lint_reports_nothing() -> None:
    words = ("--offline", "--strict", "--profile=production")
    printed("ansible-lint", *words, ANSIBLE, env=ENVIRONMENT)
