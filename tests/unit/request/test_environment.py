"""The visible devices and the CPUs of a process, as its environment has them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from affinityd.cpuset import parse_list
from affinityd.request import environment
from tests.support.tables import rows, words

CUDA, ROCR, HIP, ASCEND = (
    f"{name}_VISIBLE_DEVICES" for name in ("CUDA", "ROCR", "HIP", "ASCEND_RT")
)


@pytest.mark.parametrize(
    ("vendors", "environ", "visible"),
    [
        ("", {}, None),
        ("", {CUDA: ""}, ""),
        ("", {CUDA: " 1,x\udcff"}, " 1,x\udcff"),
        ("", {ROCR: "2"}, f"{ROCR}=2"),
        ("", {ASCEND: "3"}, "3"),
        ("nvidia", {ROCR: "2"}, None),
        ("amd", {HIP: "0", ROCR: "2"}, f"{ROCR}=2;{HIP}=0"),
        ("amd", {CUDA: "1"}, f"{HIP}=1"),
        ("amd", {CUDA: "1", HIP: "0"}, f"{HIP}=0"),
        ("amd", {CUDA: "0", ROCR: "1"}, f"{ROCR}=1;{HIP}=0"),
        ("amd", {CUDA: "1", ROCR: "1"}, f"{ROCR}=1"),  # Slurm sets both to the same
        ("huawei", {ASCEND: "0,1"}, "0,1"),
        ("nvidia amd", {ROCR: "2"}, f"{ROCR}=2"),
    ],
)
def test_the_variables_of_the_vendor_count_whose_driver_is_here(
    vendors: str, environ: Mapping[str, str], visible: str | None
) -> None:
    """HIP reads CUDA_VISIBLE_DEVICES where it has none of its own."""
    assert environment.visible(environ, vendors.split()) == visible


@pytest.mark.parametrize(
    ("environ", "mask", "cpus"),
    rows("""
what it was planned on      | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-3 | 0-7
narrowed since              | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-1 | 0-1
widened since               | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=0-7 | 0-7 | 0-7
not planned on that         | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=4-7 | 0-3 | 0-3
half of what a pin says     | AFFINITYD_CPULIST=0-3                       | 0-3 | 0-3
what is no cpulist          | AFFINITYD_CPULIST=0-3 AFFINITYD_ALLOWED=x   | 0-3 | 0-3
no pin                      |                                             | 0-3 | 0-3
"""),
)
def test_a_mask_that_an_earlier_pin_set_is_no_limit(environ: str, mask: str, cpus: str) -> None:
    assert environment.cpus_to_plan_on(words(environ), parse_list(mask)) == parse_list(cpus)
