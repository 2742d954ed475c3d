"""The speed that the daemon promises, measured against a peer in the same run."""

from bench import plans, process, prolog, scans, start


def test_ranks_of_a_new_job_get_plans_within_three_times_a_constant_route_s_time() -> None:
    ranks, beside_a_crowd = plans.measure(rounds=15)
    assert ranks.is_met, ranks
    assert beside_a_crowd.is_met, beside_a_crowd


def test_exec_and_run_cost_little_more_than_starting_an_interpreter() -> None:
    assert [row for row in start.measure(pairs=40) if not row.is_met] == []


def test_thousands_of_distinct_plans_do_not_grow_the_daemon_s_memory() -> None:
    by_the_peer_s, by_its_own_before = process.memory()
    assert by_the_peer_s <= 1.2
    assert by_its_own_before <= 1.1


def test_the_task_prolog_costs_little_more_than_hwloc_bind() -> None:
    costs = prolog.alone(rounds=40)
    assert costs[prolog.OURS] <= 1.2 * costs["hwloc-bind"]


def test_on_a_node_without_gpus_a_slurm_script_costs_little_more_than_an_empty_one() -> None:
    costs = prolog.without_gpus(rounds=200)
    assert max(costs.values()) < 1.2, costs


def test_a_scan_costs_a_tenth_of_psutil_per_process_without_a_gpu() -> None:
    assert [ratio for ratio in scans.measure(processes=2000) if ratio.middle > 0.1] == []
