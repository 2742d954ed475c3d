"""The environment that another process was started with."""

from __future__ import annotations

from affinityd.linux.files import environment_of
from tests.support.child_python import said
from tests.support.children import program, sleeping

LATER = "import os; os.environ['LATER'] = '1'; print('ready', flush=True); input()"

#: execve(2) takes any text; Python's own starts with variables alone.
NO_VARIABLES = """
import ctypes
texts = ctypes.c_char_p * 4
words = texts(b"sh", b"-c", b"echo ready; read line", None)
ctypes.CDLL(None).execve(b"/bin/sh", words, texts(b"A=1", b"none", b"=", None))"""

AS_NOBODY = """
import os, sys
from affinityd.linux.files import environment_of
os.setuid(65534)
print(environment_of(int(sys.argv[1])))"""


def test_a_process_is_known_by_the_variables_that_it_was_started_with() -> None:
    env = {"NAME": "a=b\n\udcff", "EMPTY": ""}
    with program(LATER, env=env) as child, program(NO_VARIABLES) as other:
        its = environment_of(child.pid) or {}
        assert environment_of(other.pid) == {"A": "1", "": ""}
    assert its.items() >= env.items()
    assert "LATER" not in its


def test_an_environment_that_cannot_be_read_is_none() -> None:
    with sleeping() as child:
        assert said(AS_NOBODY, str(child.pid)) == "None"
        assert environment_of(child.pid) is not None
    assert environment_of(child.pid) is None
