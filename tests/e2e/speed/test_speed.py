"""What speed the daemon promises, measured beside a peer in the same run."""

from __future__ import annotations

from bench import answers, audit, prolog, start


def test_a_remembered_answer_costs_little_more_than_a_raw_asgi_apps() -> None:
    a_second, cpu, fresh = answers.measure(rounds=9)
    assert a_second.middle >= 0.5
    assert cpu.middle <= 2.0
    assert fresh.middle >= 0.4


def test_to_take_a_place_costs_little_more_than_to_start_an_interpreter() -> None:
    of_exec, alone, of_run, *_ = start.ratios(pairs=40)
    assert of_exec.middle <= 1.5
    assert alone.middle <= 3.2  # without a daemon
    assert of_run.middle <= 1.5  # a pod's, which has no affinityd in it


def test_the_task_prolog_costs_little_more_than_hwloc_bind() -> None:
    costs = prolog.start_alone(rounds=40)
    assert costs[prolog.OURS] <= 1.2 * costs["hwloc-bind"]


def test_on_a_node_without_gpus_a_slurm_script_costs_little_more_than_an_empty_one() -> None:
    costs = prolog.leave(rounds=200)
    assert len(costs) == len(prolog.NAMES)
    assert max(costs.values()) < 1.2, costs


def test_a_daemon_that_hangs_costs_a_start_little_more_than_its_time_limit() -> None:
    assert start.hanging(rounds=5) <= 1.5


def test_a_scan_costs_a_process_that_holds_no_gpu_a_tenth_of_what_psutil_takes() -> None:
    assert [it for it in audit.cost(processes=2000) if it.middle > 0.1] == []


def test_scans_and_scrapes_without_a_pause_delay_answers_little() -> None:
    turns = list(zip(*audit.answers(series=10_000, rounds=3), strict=True))
    assert min(working.p50 / resting.p50 for resting, working in turns) <= 2
