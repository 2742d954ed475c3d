"""The environment that another process was started with."""

from __future__ import annotations

import os
import subprocess
import sys

from affinityd.linux.files import environment_of
from tests.support.children import program, sleeping


def test_a_process_is_known_by_the_environment_that_it_was_started_with() -> None:
    code = "import os; os.environ['LATER'] = '1'; print('ready', flush=True); input()"
    with program(code, env={"NAME": "a=b\n\udcff", "EMPTY": ""}) as child:
        environ = environment_of(child.pid)
    assert environ is not None
    assert (environ["NAME"], environ["EMPTY"]) == ("a=b\n\udcff", "")
    assert "LATER" not in environ


def test_what_is_no_variable_is_left_out_of_an_environment() -> None:
    """execve(2) takes any text; Python's own starts with variables alone."""
    code = """
import ctypes
texts = ctypes.c_char_p * 4
words = texts(b"sh", b"-c", b"echo ready; read line", None)
ctypes.CDLL(None).execve(b"/bin/sh", words, texts(b"A=1", b"none", b"=", None))"""
    with program(code) as child:
        assert environment_of(child.pid) == {"A": "1", "": ""}


def test_an_environment_that_cannot_be_read_is_none() -> None:
    code = """
import os, sys
from affinityd.linux.files import environment_of
os.setuid(65534)
print(environment_of(int(sys.argv[1])))"""
    with sleeping() as child:
        command = [sys.executable, "-c", code, str(child.pid)]
        path = os.pathsep.join(sys.path)
        assert subprocess.check_output(command, env={"PYTHONPATH": path}) == b"None\n"
        assert environment_of(child.pid) is not None
    assert environment_of(child.pid) is None
