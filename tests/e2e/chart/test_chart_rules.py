"""Alert and recording rules, checked and evaluated by promtool."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.e2e.chart.promtool import (
    ALERTS,
    FAR,
    FLEET,
    GPU07,
    RULES,
    RUNBOOK,
    TOTAL,
    UNPLACED,
    Played,
    Series,
    alerted,
    asked,
    clustered,
    labels,
    mismatch,
    of_gpu,
    play,
    series,
)
from tests.e2e.chart.rendering import loaded, objects

# Series on which an alert fires, and similar series on which it does not.


Case = tuple[str, Series, int, bool]  #: the alert's name after `Affinityd`, samples, minutes, fires

BUILD, GENERATION = series("affinityd_build_info"), series("affinityd_topology_generation")
ELSEWHERE = 'affinityd_topology_generation{job="affinityd",instance="b"}'
GPUS, NO_GPU = series("affinityd_gpus", vendor="amd"), BUILD
LOCAL, REFUSED = (
    series("affinityd_plans_total", mode="node", result=result, locality=locality, client="job")
    for result, locality in (("ok", "local"), ("404", ""))
)
BY_HAND = {REFUSED.replace('client="job"', 'client="other"'): "0+9x90"}
START = series("process_start_time_seconds")
NRI = series("affinityd_nri_connected")
MISSED = series("affinityd_nri_containers", state="missed", locality="unknown")
OTHER_UP = 'up{job="node",instance="a"}'


def ups(down: int, nodes: int) -> Series:
    """Return Prometheus' `up` series of targets, of which `down` are down."""
    places = ({"job": "affinityd", "instance": f"{it}", "node": f"{it}"} for it in range(nodes))
    return {f"up{labels(it)}": f"{int(place >= down)}x20" for place, it in enumerate(places)}


#: Series of three nodes: on each node a job has a far mask.
FAR_MASKS = {
    f"affinityd_gpu_numa_mismatch{labels(instance=node, node=node, gpu='0', cause='mask')}": "1x20"
    for node in "012"
}


#: An alert, its series, and for how many minutes the series must be above 0.
ABOVE_ZERO = (
    ("OrphansHoldGpu", of_gpu("affinityd_gpu_orphan_processes"), 15),
    ("PinsOverlap", series("affinityd_pin_overlap_cpus"), 15),
)
#: Samples, minutes to add to the alert's own, and whether the alert fires.
ABOVE = (("2x40", 1, True), ("2x40", -1, False), ("2x9 0 2x40", 1, False), ("0x40", 1, False))

#: Alerts on metrics of the daemon and its plans.
DAEMON: tuple[Case, ...] = (
    ("Down", {series("up"): "0x20"}, 6, True),
    ("Down", {series("up"): "0x20"}, 4, False),
    ("Down", {OTHER_UP: "0x20"}, 6, False),
    ("Down", {OTHER_UP: "0x20", BUILD: "1x20"}, 6, False),
    ("NotReady", {BUILD: "1x20"}, 6, True),
    ("NotReady", {BUILD: "1x20", GENERATION: "1x20", ELSEWHERE: "1x20"}, 6, False),
    ("SeesNoGpu", {GENERATION: "1x30"}, 16, True),
    ("SeesNoGpu", {GENERATION: "1x30", GPUS: "8x30"}, 16, False),
    ("RefusesPlans", {LOCAL: "0+1x90", **BY_HAND}, 80, False),
    ("Down", {series("up"): "1x20", START: "1 1 7 20 40 60x15"}, 11, True),
    ("Down", {series("up"): "1x20", START: "1x9 7x11"}, 16, False),
    ("ManyNodes", ups(3, 15), 6, False),  # not more than a fifth of the nodes
    ("ManyNodes", ups(2, 3), 6, False),
    ("ManyNodes", ups(3, 10), 6, True),
    ("ManyNodes", ups(3, 10), 4, False),
    ("ManyNodes", {**ups(0, 10), **FAR_MASKS}, 18, False),  # no alert counts far masks by node
    ("RefusesPlans", {LOCAL: "0+1x90", REFUSED: "0+3x90"}, 80, True),
    ("RefusesPlans", {LOCAL: "0+3x90", REFUSED: "0+1x90"}, 80, False),
    ("NriIsLost", {NRI: "0x20"}, 6, True),
    ("NriIsLost", {NRI: "0x3 1 0x20"}, 6, False),
    ("NriMissesContainers", {MISSED: "2x20"}, 6, True),
    ("NriMissesContainers", {MISSED: "0x20"}, 6, False),
)

FAR_MEMORY, NEAR_MEMORY = (
    of_gpu("affinityd_gpu_host_memory_bytes", locality=it) for it in ("remote", "local")
)
WAITED = of_gpu("affinityd_gpu_wait_seconds_total")
BURST = "0+6000x5 30000x85"  #: 100 CPUs for five minutes
AGE, EVERY = series("affinityd_scan_age_seconds"), series("affinityd_scan_interval_seconds")
BALANCING, AUDITED = series("affinityd_numa_balancing"), of_gpu("affinityd_gpu_audited")
LOST = of_gpu("affinityd_gpu_lost")

#: A node on its first day: nothing is pinned, and the kernel has the distribution's settings.
UNTENDED = {mismatch("unpinned"): "1x90", BALANCING: "1x90", GPUS: "8x90"}

#: An alert on an average → the cause that the alert is about.
BY_CAUSE = {"AllocationIsRemote": "allocation", "MaskIsRemote": "mask"}

#: Alerts on metrics of processes. 1200 CPU seconds in a minute are 20 CPUs; 90 are 1.5 CPUs.
AUDIT: tuple[Case, ...] = (
    *((alert, {mismatch("other"): "1x40"}, 16, False) for alert in (*BY_CAUSE, "Unpinned")),
    *(
        (alert, {mismatch(cause): samples}, minutes, fires)
        for alert, cause in BY_CAUSE.items()
        for samples, minutes, fires in (
            ("1x40", 16, True),
            ("1x40", 14, False),
            ("0x40", 16, False),
            ("1x3 0 1x3 0 1x3 0 1x3 0 1x3", 18, True),  # one short job after another
            ("1x5 0x40", 20, False),
            ("1x20 0x40", 20, True),
            ("1x20 0x40", 28, False),  # the job has ended
            ("1x20 0x40", 33, False),
            ("0x3 1 0x3 1 0x3 1 0x3 1 0x3", 18, False),
            ("3x9 0x40", 20, False),  # the samples count processes, not minutes
            ("1x9 _x40", 20, False),  # most minutes have no sample
        )
    ),
    ("Unpinned", {mismatch("unpinned"): "2x40"}, 30, True),
    ("Unpinned", {mismatch("unpinned"): "2x40"}, 28, False),
    ("Unpinned", {mismatch("unpinned"): "0x9 1x40"}, 41, True),
    ("Unpinned", {mismatch("unpinned"): "0x9 1x40"}, 38, False),
    ("Unpinned", {mismatch("unpinned"): "1x9 0 1x9 0 1x9 0 1x9"}, 38, False),
    ("Unpinned", {mismatch("unpinned"): "1x3 stale _x20 1x3"}, 30, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x90"}, 70, True),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+240x90"}, 70, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x90", UNPLACED: "0+9000x90"}, 70, True),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+90x90", FAR: "0+50x90"}, 70, False),
    ("RemoteCpuTimeIsHigh", {TOTAL: "0+1200x90", FAR: "0+600x20 12000x70"}, 70, False),
    *(("RemoteCpuTimeIsHigh", {TOTAL: BURST, FAR: BURST}, minutes, False) for minutes in (22, 33)),
    ("GpuWaits", {WAITED: "0+60x90", TOTAL: "0+60x90"}, 50, True),  # half of the time
    ("GpuWaits", {WAITED: "0+60x90", TOTAL: "0+1200x90"}, 80, False),  # many threads, 5 %
    ("GpuWaits", {WAITED: "0+20x90", TOTAL: "0+20x90"}, 50, False),  # a third of a second
    *(("GpuWaits", {TOTAL: BURST, WAITED: BURST}, minutes, False) for minutes in (22, 33)),
    ("HostMemoryIsFar", {FAR_MEMORY: "9e9x40", NEAR_MEMORY: "9e9x40"}, 31, True),
    ("HostMemoryIsFar", {FAR_MEMORY: "9e9x40", NEAR_MEMORY: "9e9x40"}, 29, False),
    ("HostMemoryIsFar", {FAR_MEMORY: "9e9x40", NEAR_MEMORY: "9e10x40"}, 31, False),
    ("HostMemoryIsFar", {FAR_MEMORY: "8e9x40", NEAR_MEMORY: "1e9x40"}, 31, False),
    ("CannotSeeIntoGpus", {AUDITED: "0x20"}, 16, True),
    ("CannotSeeIntoGpus", {AUDITED: "1x20"}, 16, False),
    ("CannotSeeIntoGpus", {AUDITED: "0x20", LOST: "1x20"}, 16, False),  # GpuIsLost reports it
    ("CannotSeeIntoGpus", {EVERY: "15x40"}, 16, True),
    ("CannotSeeIntoGpus", {EVERY: "15x40", AGE: "_ 20x40"}, 18, False),
    ("CannotSeeIntoGpus", {EVERY: "15x40", AGE: "0+60x40"}, 21, True),
    ("CannotSeeIntoGpus", {EVERY: "600x40", AGE: "0 500x40"}, 18, False),
    ("CannotSeeIntoGpus", {EVERY: "600x40", AGE: "0 1600x40"}, 18, True),
    ("CannotSeeIntoGpus", {AGE: "15x40"}, 16, False),
    ("GpuIsLost", {LOST: "0x9 1x20"}, 13, True),
    ("GpuIsLost", {LOST: "0x9 1x20"}, 10, False),
    ("GpuIsLost", {LOST: "0x9 1 0x20"}, 13, False),
    ("NumaBalancingIsOn", {BALANCING: "1x90", GPUS: "8x90"}, 61, True),
    ("NumaBalancingIsOn", {BALANCING: "3x90", GPUS: "8x90"}, 61, True),
    *(("NumaBalancingIsOn", {BALANCING: f"{n}x90", GPUS: "8x90"}, 61, False) for n in (0, 2)),
    ("NumaBalancingIsOn", {BALANCING: "1x90", NO_GPU: "8x90"}, 61, False),
)

CASES: tuple[Case, ...] = (
    *DAEMON,
    *AUDIT,
    *(
        (alert, {name: samples}, minutes + more, fires)
        for alert, name, minutes in ABOVE_ZERO
        for samples, more, fires in ABOVE
    ),
)


# The rules.

OTHERS = {"job": "pods", "instance": "a", "node": "gpu07"}  #: a scrape job of many kinds of pods
POD_BUILD, POD_UP = (f"{name}{labels(OTHERS)}" for name in ("affinityd_build_info", "up"))


def firing(alert: str, played: Series, minutes: int, *where: Mapping[str, str]) -> Played:
    """Return a test: an alert fires only for these labels."""
    alerts = f'ALERTS{{alertname="{alert}",alertstate="firing"}}'
    expr = f"count by (cluster, job, instance, node) ({alerts})"
    return asked(expr, played, minutes, {labels(it): 1 for it in where})


def everywhere(played: Series) -> Series:
    """Return the series in a cluster without a name, and in one with a name."""
    return {**played, **clustered(played, "east")}


CLUSTERS: tuple[Mapping[str, str], ...] = ({}, {"cluster": "east"})


def samples_of(text: str) -> list[str]:
    """Return promtool's samples one by one: `1+2x3 _x2` are 1, 3, 5, 7 and two gaps."""
    samples: list[str] = []
    for part in text.split():
        start, _, times = part.partition("x")
        first, _, step = start.partition("+")
        number = int(times or 0) + (start != "_")
        if first in {"_", "stale"}:
            samples += [first] * number
        else:
            samples += [str(float(first) + float(step or 0) * it) for it in range(number)]
    return samples


def test_no_alert_fires_on_missing_data(tmp_path: Path) -> None:
    tests = []
    for case, samples, minutes, fires in CASES:
        if fires and case != "Down":
            every = {name: samples_of(text) for name, text in samples.items()}
            ended = {name: " ".join([*its[:minutes], "stale"]) for name, its in every.items()}
            gap = ["stale", *["_"] * (minutes - 3)]
            holed = {
                name: " ".join([*its[:2], *gap, *its[minutes:]]) for name, its in every.items()
            }
            alert = f"Affinityd{case}"
            tests += [firing(alert, ended, minutes + 1), firing(alert, holed, minutes)]
    play(tmp_path, *tests)


def test_an_alert_fires_when_it_should_in_each_cluster(tmp_path: Path) -> None:
    tests = []
    for case, samples, minutes, fires in CASES:
        alert = f"Affinityd{case}"
        at = {} if alert in {*FLEET, "AffinitydManyNodes"} else GPU07
        where = [{**it, **at} for it in CLUSTERS if fires]
        tests.append(firing(alert, everywhere(samples), minutes, *where))
    play(tmp_path, *tests)
    for both in (True, False):
        assert {f"Affinityd{it}" for it, *_, fires in CASES if fires == both} == ALERTS.keys()


def test_a_stopped_daemon_is_detected_whatever_the_scrape_job(tmp_path: Path) -> None:
    for build, up, where in (
        ("1x3 stale", "1x3 0x20", [OTHERS]),
        ("1x3 stale", "1x3 0x2 1x20", []),  # the target came back
        ("1x3 stale", "1x3 0x2 stale", []),  # the target's node is gone
        ("_x20", "1x3 0x20", []),  # the target never was a daemon
        ("1x3 stale", "1x3 _x8 0x20", [OTHERS]),  # meanwhile Prometheus did not run
    ):
        play(tmp_path, firing("AffinitydDown", {POD_BUILD: build, POD_UP: up}, 20, *where))


def on_gpu08(played: Series) -> Series:
    return {name.replace("gpu07", "gpu08"): samples for name, samples in played.items()}


#: Series of three clusters, one without a name; each cluster has its own node called gpu07.
FLEETS = {
    **clustered(UNTENDED, "east"),
    **clustered(on_gpu08(UNTENDED), "east"),
    **clustered(UNTENDED, "west"),
    **clustered({mismatch("unpinned", 1): "0x90"}, "west"),
    **clustered({it.replace('"a"', '"b"'): "0x90" for it in UNTENDED}, "west"),
    **UNTENDED,
}


def test_a_fleet_alert_names_the_cluster_and_counts_its_nodes(tmp_path: Path) -> None:
    counts = {'{cluster="east"}': 2, '{cluster="west"}': 1, "{}": 1}
    play(tmp_path, *(asked(ALERTS[it]["expr"], FLEETS, 80, counts) for it in sorted(FLEET)))
    of = {'{"cluster": "east"}': "2 node(s) of east", '{"cluster": "west"}': "1 node(s) of west"}
    summaries = {its: f"{nodes} run GPU processes without a pin." for its, nodes in of.items()}
    summaries["{}"] = "1 node(s) run GPU processes without a pin."
    play(tmp_path, alerted("AffinitydUnpinned", FLEETS, 80, summaries))


def test_a_new_fleet_has_only_the_two_fleet_alerts(tmp_path: Path) -> None:
    calm = {TOTAL: "0+1200x90", FAR: "0x90", BUILD: "1x90", series("up"): "1x90"}
    everything = {**UNTENDED, **calm, GENERATION: "1x90"}
    expr = 'count by (alertname) (ALERTS{alertstate="firing"})'
    alone = {labels(alertname=it): 1 for it in sorted(FLEET)}
    play(tmp_path, asked(expr, {**everything, **on_gpu08(everything)}, 80, alone))


def job_gpu(job: Mapping[str, str], gpu: int = 0) -> str:
    return of_gpu("affinityd_job_gpu", gpu, **job)


def test_an_alert_names_its_gpus_its_jobs_and_the_cause(tmp_path: Path) -> None:
    held, of_pod = (
        series("affinityd_job_mismatched_gpu_seconds_total", **job, cause="allocation")
        for job in (JOB, OF_POD)
    )
    far = {mismatch("allocation", gpu): f"{int(gpu < 2)}x20" for gpu in range(3)}
    of_jobs = {**far, held: "0+60x20", held.replace('"7"', '"8"'): "0x20", of_pod: "0+60x20"}
    jobs = {job_gpu(JOB): "1x90", job_gpu(OF_POD, 1): "1x90"}
    second = WAITED.replace("00:00", "01:00").replace('gpu="0"', 'gpu="1"')
    waits = {WAITED: "0+60x90", TOTAL: "0+60x90", second: "0x90", **jobs}
    for cause, processes in (("throttled", 2), ("neighbor", 0)):
        waits[of_gpu("affinityd_gpu_waiting_processes", cause=cause)] = f"{processes}x90"
    spent = {TOTAL: "0+1200x90", FAR: "0+600x90", mismatch("mask"): "1x90"}
    spent[series("affinityd_job_remote_cpu_seconds_total", **JOB)] = "0+600x90"
    memory = {FAR_MEMORY: f"{2**34}x40", **jobs}
    memory[of_gpu("affinityd_gpu_far_memory_processes", cause="late")] = "1x40"
    orphan = {of_gpu("affinityd_gpu_orphan_processes"): "1x40", **jobs}
    unseen = {AUDITED: "0x40", AUDITED.replace("00:00", "01:00"): "1x40"}
    gpu = {**GPU07, "gpu": "0", "pci_bus_id": "0000:00:00.0"}
    for alert, samples, minutes, where, summary in (
        (
            "AllocationIsRemote",
            of_jobs,
            16,
            GPU07,
            (
                "2 GPU(s) of gpu07 serve jobs that have no CPU near them: GPU 0 GPU 1, slurm 7, "
                "kubernetes n/p."
            ),
        ),
        (
            "GpuWaits",
            waits,
            50,
            GPU07,
            (
                "Threads on GPUs of gpu07 wait for CPUs for 50% of the time in which they could "
                "run: GPU 0, slurm 7, cause throttled."
            ),
        ),
        (
            "RemoteCpuTimeIsHigh",
            spent,
            70,
            GPU07,
            (
                "50% of the CPU time of processes on the GPUs of gpu07 is spent far from these "
                "GPUs: GPU 0, slurm 7, cause mask."
            ),
        ),
        (
            "HostMemoryIsFar",
            memory,
            35,
            gpu,
            (
                "16GiB of host memory of the processes of GPU 0 of gpu07 are on far NUMA nodes, "
                "slurm 7, cause late."
            ),
        ),
        (
            "OrphansHoldGpu",
            orphan,
            20,
            gpu,
            "1 process(es) of no living job hold GPU 0 of gpu07, slurm 7.",
        ),
        (
            "PinsOverlap",
            {series("affinityd_pin_overlap_cpus"): "2x40", **jobs},
            20,
            GPU07,
            (
                "More than one job is pinned to the same 2 CPU(s) of gpu07; on its GPUs are "
                "slurm 7, kubernetes n/p."
            ),
        ),
        (
            "CannotSeeIntoGpus",
            unseen,
            20,
            GPU07,
            "The processes of 1 GPU(s) of gpu07 are not known: GPU 0 (0000:00:00.0).",
        ),
    ):
        play(tmp_path, alerted(f"Affinityd{alert}", samples, minutes, {json.dumps(where): summary}))


def test_an_alert_about_many_nodes_says_how_many(tmp_path: Path) -> None:
    for cluster, of in ({}, ""), ({"cluster": "east"}, " of east"):
        summary = f"3 of 10 nodes{of} have AffinitydDown."
        where = json.dumps({**cluster, "problem": "AffinitydDown"})
        fleet = clustered(ups(3, 10), "east") if cluster else ups(3, 10)
        play(tmp_path, alerted("AffinitydManyNodes", fleet, 6, {where: summary}))


def test_an_alert_names_its_node_or_the_node_s_address(tmp_path: Path) -> None:
    nameless = {"job": "affinityd", "instance": "10.0.0.7:9465"}
    for target, place in ((GPU07, "gpu07"), (nameless, "10.0.0.7:9465")):
        where = json.dumps({**target, "reason": "down"})
        summaries = {where: f"affinityd on {place} does not answer."}
        play(tmp_path, alerted("AffinitydDown", {f"up{labels(target)}": "0x20"}, 6, summaries))


def test_a_restarting_daemon_has_one_reason_even_while_it_is_down(tmp_path: Path) -> None:
    summaries = {
        json.dumps({**GPU07, "reason": "restarts"}): (
            "affinityd on gpu07 has restarted 5 times in 15 minutes."
        )
    }
    samples = {series("up"): "1x5 0 1 0 1 0x10", START: "1 1 7 20 40 60 _ 80 _ 80 _x10"}
    play(tmp_path, alerted("AffinitydDown", samples, 10, summaries))


#: The labels of a Slurm job, and those of a pod.
JOB = {"scheduler": "slurm", "job_id": "7"}
OF_POD = {"scheduler": "kubernetes", "job_id": "8a1f", "namespace": "n", "pod": "p"}


def test_the_custom_resource_has_the_rules_and_their_runbook_page() -> None:
    text, other = RULES.read_text(), "https://wiki.example.org/gpu?page=$1"
    on = "metrics.prometheusRule.enabled=true"
    for values, page in ((on, RUNBOOK), (f"{on} metrics.prometheusRule.runbookUrl={other}", other)):
        (expected,) = loaded(text.replace(RUNBOOK, page))
        assert objects(values)["PrometheusRule/affinityd"]["spec"] == expected
