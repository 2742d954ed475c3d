"""Values of pinning from outside: what the daemon is told, and what it may do for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from affinityd.config.settings import ENFORCE_VALUES, NAMES
from affinityd.daemon.policy_document import parse
from tests.e2e.chart.pod_security import against_baseline
from tests.e2e.chart.rendering import OPTIONS, container, objects, pod, refusal, with_values

OBSERVE = {"audit": {"enabled": True}, "enforce": {"mode": "observe"}}
PIN = {"audit": {"enabled": True}, "enforce": {"mode": "pin"}}
OLDER = {"hostPID": True, "enforce": {"mode": "pin"}}  #: before there was audit.enabled
POLICY = 'mode = "exclusive"\n'
FILE = "/etc/affinityd/policy.toml"


def but(values: Mapping[str, Any], **enforce: object) -> Mapping[str, Any]:
    return {**values, "enforce": {**values["enforce"], **enforce}}


def spec(values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - YAML
    return with_values(values)["DaemonSet/affinityd"]["spec"]["template"]["spec"]


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({}, []),
        ({"enforce": {"mode": False}}, []),
        ({"hostPID": True}, []),
        ({"enforce": {"policy": POLICY, "migrateMemory": True, "readEnvironments": True}}, []),
        (OBSERVE, ["--enforce=observe"]),
        (but(OBSERVE, migrateMemory=True), ["--enforce=observe"]),
        (but(OBSERVE, policy=POLICY), ["--enforce=observe", f"--enforce-policy={FILE}"]),
        (PIN, ["--enforce=pin"]),
        (but(PIN, migrateMemory=True), ["--enforce=pin", "--migrate-memory"]),
    ],
    ids=json.dumps,
)
def test_the_daemon_is_told(values: Mapping[str, Any], arguments: list[str]) -> None:
    (daemon,) = spec(values)["containers"]
    flags = ("--enforce", "--migrate-memory")
    assert [it for it in daemon["args"] if it.startswith(flags)] == arguments
    assert {it.partition("=")[0][2:].replace("-", "_") for it in arguments} <= set(NAMES)


@pytest.mark.parametrize(
    ("values", "capabilities"),
    [
        ({}, []),
        ({"hostPID": True, "enforce": {"readEnvironments": True, "migrateMemory": True}}, []),
        (OBSERVE, []),
        (but(OBSERVE, migrateMemory=True), []),
        (but(OBSERVE, readEnvironments=True), ["SYS_PTRACE", "DAC_READ_SEARCH"]),
        (PIN, ["SYS_NICE"]),
        (but(PIN, migrateMemory=True), ["SYS_NICE", "SYS_PTRACE"]),
        (but(PIN, readEnvironments=True), ["SYS_NICE", "SYS_PTRACE", "DAC_READ_SEARCH"]),
    ],
    ids=json.dumps,
)
def test_it_is_root_with_what_it_needs_or_nobody(
    values: Mapping[str, Any], capabilities: list[str]
) -> None:
    made = spec(values)
    (daemon,) = made["containers"]
    context = {**made["securityContext"], **daemon["securityContext"]}
    user = 0 if capabilities else 65532
    assert context["capabilities"].get("add", []) == capabilities
    assert (context["runAsUser"], context["runAsGroup"]) == (user, user)
    assert context["runAsNonRoot"] == (not capabilities)
    assert context["capabilities"]["drop"] == ["ALL"]
    assert (context["allowPrivilegeEscalation"], context["readOnlyRootFilesystem"]) == (False, True)
    (step,) = made["initContainers"]
    assert f"chown -R {user}:{user} /run/affinityd\n" in step["args"][0]
    assert step["securityContext"]["capabilities"]["add"] == ["CHOWN"]


@pytest.mark.parametrize("option", sorted(OPTIONS))
def test_only_who_moves_memory_has_no_seccomp_profile(option: str) -> None:
    context = {**pod(option)["securityContext"], **container(option)["securityContext"]}
    moves = "--migrate-memory" in container(option)["args"]
    assert context["seccompProfile"]["type"] == ("Unconfined" if moves else "RuntimeDefault")


def test_the_names_of_the_nodes_pods_are_there_to_be_read_where_a_rule_asks_for_them() -> None:
    by_user, by_pod = '[[rule]]\nuser = "podman"', '[[rule]]\nnamespace = "a"'
    for values, there in (
        ({"hostPID": True, "enforce": {"policy": by_pod}}, False),
        (OBSERVE, False),
        ({**PIN, "enforce": {"mode": "pin", "policy": by_user}}, False),
        ({**PIN, "enforce": {"mode": "pin", "policy": by_pod}}, True),
    ):
        made = spec(values)
        (daemon,) = made["containers"]
        mounts = [it for it in daemon["volumeMounts"] if it["name"] == "pods"]
        volumes = [it["hostPath"]["path"] for it in made["volumes"] if it["name"] == "pods"]
        assert volumes == ["/var/log/pods"] * there
        assert mounts == [{"name": "pods", "mountPath": "/var/log/pods", "readOnly": True}] * there


def test_the_policy_is_mounted_as_a_folder_so_that_a_change_of_it_arrives() -> None:
    made = objects("pin")
    policy = yaml.safe_load(OPTIONS["pin"].read_text())["enforce"]["policy"]
    assert made["ConfigMap/affinityd-policy"]["data"] == {"policy.toml": policy}
    (mount,) = (it for it in container("pin")["volumeMounts"] if it["name"] == "policy")
    assert mount == {"name": "policy", "mountPath": "/etc/affinityd", "readOnly": True}
    (volume,) = (it for it in pod("pin")["volumes"] if it["name"] == "policy")
    assert volume["configMap"] == {"name": "affinityd-policy"}


def test_the_policy_of_the_example_is_one() -> None:
    assert (
        len(parse(objects("pin")["ConfigMap/affinityd-policy"]["data"]["policy.toml"]).rules) == 2
    )


@pytest.mark.parametrize("policy", [POLICY, "  mode = 'node'\n# a: b\n", "\n\n#\ttab\n", "a" * 300])
def test_a_policy_arrives_as_it_was_written(policy: str) -> None:
    made = with_values(but(OBSERVE, policy=policy))["ConfigMap/affinityd-policy"]
    assert made["data"] == {"policy.toml": policy}


def test_there_is_no_policy_where_nothing_is_enforced() -> None:
    assert "ConfigMap/affinityd-policy" not in with_values({"enforce": {"policy": POLICY}})


NO_PROCESS = (
    "and no process is looked at; set audit.enabled: true and leave settings.scanInterval empty, "
    "or set enforce.mode: off"
)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"enforce": {"mode": "pin"}}, f"enforce.mode is pin, {NO_PROCESS}"),
        ({"enforce": {"mode": "observe"}}, f"enforce.mode is observe, {NO_PROCESS}"),
        ({**OLDER, "settings": {"scanInterval": "off"}}, f"enforce.mode is pin, {NO_PROCESS}"),
        ({"enforce": {"mode": True}}, "at '/enforce/mode': value must be one of 'off', 'observe'"),
        ({"enforce": {"mode": "on"}}, "at '/enforce/mode': value must be one of 'off', 'observe'"),
        (
            {"enforce": {"policy": {"mode": "node"}}},
            "at '/enforce/policy': got object, want string",
        ),
        ({"enforce": {"migrate": True}}, "additional properties 'migrate' not allowed"),
        *(
            (
                {"extraArgs": [argument]},
                f"extraArgs: {argument.partition('=')[0]} is the chart's own; set enforce.{value}",
            )
            for argument, value in {
                "--enforce=pin": "mode instead",
                "--enforce-policy=/mine": "policy instead",
                "--migrate-memory": "migrateMemory instead",
            }.items()
        ),
        *(
            (
                {"extraEnv": [{"name": f"AFFINITYD_{name}", "value": "1"}]},
                f"extraEnv: AFFINITYD_{name} is the chart's own; set enforce.{value} instead",
            )
            for name, value in {
                "ENFORCE": "mode",
                "ENFORCE_POLICY": "policy",
                "MIGRATE_MEMORY": "migrateMemory",
            }.items()
        ),
        *(
            (
                {"extraVolumes": [{"name": name, "emptyDir": {}}]},
                f"extraVolumes: {name} is the chart's own; give yours another name{instead}",
            )
            for name, instead in {"policy": ", or set enforce.policy", "pods": ""}.items()
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_what_cannot_be_enforced_is_refused_with_the_remedy(
    values: Mapping[str, Any], said: str
) -> None:
    assert said in refusal(values)


def test_the_modes_are_the_daemons() -> None:
    for mode in ENFORCE_VALUES:
        assert "DaemonSet/affinityd" in with_values({"hostPID": True, "enforce": {"mode": mode}})


@pytest.mark.parametrize(
    ("option", "barred"),
    [
        ("observe", []),
        ("pin", ["hostPath", "capability SYS_NICE"]),  # its policy asks for namespaces
        (
            "pin-privileges",
            [
                *("capability DAC_READ_SEARCH", "capability SYS_NICE", "capability SYS_PTRACE"),
                "seccomp Unconfined",
            ],
        ),
    ],
)
def test_what_the_baseline_pod_security_standard_bars_besides_the_audit(
    option: str, barred: list[str]
) -> None:
    audit = ["hostPID", *["hostPath"] * 2]
    assert list(against_baseline(pod(option))) == audit + barred
