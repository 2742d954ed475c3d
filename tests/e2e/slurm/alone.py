"""A script of slurm/ on a simulated node, in a mount namespace.

The node's /dev, /run and /etc contain only what a test puts there.
"""

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.slurm.node import SCRIPTS
from tests.support.daemons import PATIENCE
from tests.support.paths import open_folder
from tests.support.servers import Behaviour, serving
from tests.support.tiny import BOTH, Ended, ran

NODE = Path(__file__).with_name("alone.sh").read_text()
SHELLS = ("dash", "bash", "busybox")  #: the programs that may be /bin/sh
JOB = {"SLURM_JOB_ID": "1"}
UID = 54321
AS_USER = ("/usr/bin/setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")


@dataclass(frozen=True)
class Node:
    run: Path | None = None  #: the node's /run/affinityd; `jobs` in it is /run/affinityd-jobs
    devices: str = "nvidiactl nvidia0 nvidia1"
    settings: str = ""  #: the site's settings file
    more: str = ""  #: lines of sh that change the node first
    after: str = ""  #: lines of sh that run after the script
    shell: str = ""  #: the program that is /bin/sh; empty: this machine's
    scripts: Path = SCRIPTS

    def run_script(self, name: str, env: Mapping[str, str]) -> Ended:
        """Run the script with only this environment: a TaskProlog as the user, others as root."""
        says = (f"{key}={text}" for key, text in env.items())
        command = [*(AS_USER if name == "task_prolog.sh" else ()), "/usr/bin/env", "-i", *says]
        facts = (self.run or "", self.settings, self.devices, self.shell, self.more)
        words = (*map(str, facts), *command, str(self.scripts / name))
        namespace = ("unshare", "--mount", "sh", "-ec", NODE + self.after, "sh")
        return ran(*namespace, *words, timeout=PATIENCE)


def task_prolog(node: Node, env: Mapping[str, str], before: str = BOTH) -> tuple[str, str]:
    """Return task_prolog.sh's output, and the task's CPUs afterwards; `before`: the CPUs at first.

    Slurm reads both streams: stderr must have no line that Slurm would apply.
    """
    command = ["taskset", "-c", before, "cat"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, user=UID) as task:
        done = node.run_script("task_prolog.sh", {**JOB, "SLURM_TASK_PID": f"{task.pid}", **env})
        status = Path(f"/proc/{task.pid}/status").read_text()
    heeded = re.findall(r"^(?:export \w+=|unset \w|print ).*\n", done.stderr, re.MULTILINE)
    assert (done.status, heeded) == (0, []), done
    return done.stdout, status.split("Cpus_allowed_list:\t")[1].splitlines()[0]


@contextmanager
def beside(behave: Behaviour | None) -> Iterator[Path]:
    """Yield a folder for /run/affinityd, in which a server, if any, listens like a daemon."""
    # Not below pytest's folder, which may be in the /dev that the script does not see.
    with open_folder() as folder:
        if behave is None:
            yield folder
        else:
            with serving(folder / "affinityd.sock", behave) as path:
                path.chmod(0o666)
                yield folder
