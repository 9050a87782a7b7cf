"""The Kubernetes manifests, resolved by kubectl: what KubeRay's definitions and the pod security standard say of them."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from ray.scripts.scripts import drain_node, start

from pipeline.cli import serve
from pipeline.config.execution import ClusterParams
from tests.conftest import ROOT
from tests.deploy.composed import shared
from tests.deploy.pod_security import faults

KUBERAY = ROOT / "deploy/kuberay"
OVERLAYS = ("cpu", "gpu", "autoscaling")
VERSIONS = ("1.5.1", "1.7.0")
JOB = yaml.safe_load((KUBERAY / "job.yaml").read_text(encoding="utf-8"))
SERVE = {one["kind"]: one for one in yaml.safe_load_all((KUBERAY / "serve.yaml").read_text(encoding="utf-8"))}
"""Kind → the object, of the server of the champion."""


def kubectl() -> str:
    if (program := shutil.which("kubectl")) is None:
        if os.environ.get("GAUSSCSE_REQUIRE_KUBECTL"):
            pytest.fail("GAUSSCSE_REQUIRE_KUBECTL is set, but kubectl is missing")
        pytest.skip("kubectl (1.21 or later) is missing")
    return program


@functools.cache
def resolved(overlay: str) -> dict[str, dict[str, Any]]:
    """Kind → the object that an overlay makes."""
    folder = KUBERAY / "overlays" / overlay
    done = subprocess.run([kubectl(), "kustomize", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    objects = list(yaml.safe_load_all(done.stdout))
    assert len({one["kind"] for one in objects}) == len(objects)
    return {one["kind"]: one for one in objects}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    return copy.deepcopy(resolved(request.param))


@functools.cache
def definition(resource: str, version: str) -> dict[str, Any]:
    """The schema of a kind in KubeRay's definitions, which here refuses keys that it does not know."""
    file = shared(f"{resource}-v{version}.yaml.gz")
    # The loader in Python takes ten seconds for one of them.
    crd = yaml.load(gzip.decompress(file.read_bytes()), Loader=yaml.CSafeLoader)
    (schema,) = (one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"] if one["name"] == "v1")

    def close(part: Any) -> None:
        if isinstance(part, dict):
            # A Kubernetes server drops such keys, or refuses them if it is asked to.
            if isinstance(part.get("properties"), dict) and not part.get("x-kubernetes-preserve-unknown-fields"):
                part.setdefault("additionalProperties", False)
            for inner in part.values():
                close(inner)

    close(schema)
    # The server checks metadata by itself.
    schema["properties"]["metadata"] = {"type": "object", "required": ["name"]}
    return schema


def complaints(value: Any, schema: dict[str, Any]) -> list[str]:
    return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(schema).iter_errors(value)]


def groups(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def pods(objects: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The pods with the containers that KubeRay adds: the autoscaler, and what waits for the head in a worker's context."""
    cluster = copy.deepcopy(objects["RayCluster"])
    for group in groups(cluster):
        spec = group["template"]["spec"]
        if group is cluster["spec"]["headGroupSpec"]:
            if cluster["spec"].get("enableInTreeAutoscaling"):
                options = cluster["spec"]["autoscalerOptions"]
                spec["containers"].append({"name": "autoscaler", "securityContext": options.get("securityContext", {})})
        else:
            spec["initContainers"] = [{"name": "wait-gcs-ready", "securityContext": spec["containers"][0]["securityContext"]}]
        yield group["template"]
    yield objects["StatefulSet"]["spec"]["template"]


@pytest.mark.parametrize("version", VERSIONS)
def test_kuberay_s_definitions_take_every_overlay(objects: dict[str, dict[str, Any]], version: str) -> None:
    schema = definition("rayclusters", version)
    assert complaints(objects["RayCluster"], schema) == []
    # The definitions hold the schema of a pod, which is that of Redis and of the server too.
    pod = schema["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]["template"]
    assert complaints(objects["StatefulSet"]["spec"]["template"], pod) == []
    assert complaints(SERVE["Deployment"]["spec"]["template"], pod) == []
    # They refuse a slip of the pen, a wrong type and a missing key.
    for path, value in (("rayVersoin", "2"), ("rayVersion", 2), ("authOptions", {"mode": "none"}), ("workerGroupSpecs", [{}])):
        wrong = copy.deepcopy(objects["RayCluster"])
        wrong["spec"][path] = value
        assert complaints(wrong, schema), path


@pytest.mark.parametrize("version", VERSIONS)
def test_kuberay_s_definitions_take_the_job(version: str) -> None:
    assert complaints(JOB, definition("rayjobs", version)) == []


def test_every_pod_is_of_the_restricted_level(objects: dict[str, dict[str, Any]]) -> None:
    templates = list(pods(objects))
    assert len(templates) == 3
    for template in (*templates, SERVE["Deployment"]["spec"]["template"]):
        assert list(faults(template)) == []


def test_the_head_s_memory_outlives_it(objects: dict[str, dict[str, Any]]) -> None:
    options = objects["RayCluster"]["spec"]["gcsFaultToleranceOptions"]
    host, _, port = options["redisAddress"].partition(":")
    service = objects["Service"]
    assert (service["metadata"]["name"], [one["port"] for one in service["spec"]["ports"]]) == (host, [int(port)])
    redis = objects["StatefulSet"]["spec"]
    labels = redis["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == redis["selector"]["matchLabels"] == labels
    (container,) = redis["template"]["spec"]["containers"]
    password = container["env"][0]["valueFrom"]
    assert password == options["redisPassword"]["valueFrom"]
    # It writes what it is given to a disk that stays.
    (mount,) = container["volumeMounts"]
    assert {claim["metadata"]["name"] for claim in redis["volumeClaimTemplates"]} == {mount["name"]}
    assert f"dir {mount['mountPath']}" in container["command"][-1]
    assert "appendonly yes" in container["command"][-1]


def test_ray_is_the_one_that_is_pinned_and_starts_with_options_that_it_has(objects: dict[str, dict[str, Any]]) -> None:
    pinned = re.search(r"^ray==(\S+)", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    spec = objects["RayCluster"]["spec"]
    assert spec["rayVersion"] == pinned[1]
    assert spec["authOptions"] == {"mode": "token"}
    for group in groups(objects["RayCluster"]):
        start.make_context("ray start", [f"--{key}={value}" for key, value in group["rayStartParams"].items()])
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        # Ray counts what the limits say; with other requests a node is filled twice. /dev/shm is KubeRay's to size.
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert "volumes" not in pod


def test_a_worker_pod_has_time_to_drain_its_node_before_it_is_killed(objects: dict[str, dict[str, Any]]) -> None:
    """tests/cluster/test_elastic.py runs the command."""
    (workers,) = objects["RayCluster"]["spec"]["workerGroupSpecs"]
    spec = workers["template"]["spec"]
    shell, option, line = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    ray, command, *options, then, sleep, wait = shlex.split(line)
    assert (ray, command) == ("ray", "drain-node")
    drained = drain_node.make_context("ray drain-node", options).params
    # Of the node that it runs on, in the cluster of the container's RAY_ADDRESS.
    assert (drained["node_id"], drained["address"]) == (None, None)
    assert drained["reason"] == "DRAIN_NODE_REASON_PREEMPTION"
    assert (then, sleep, int(wait)) == ("&&", "sleep", drained["deadline_remaining_seconds"])
    # The command itself takes seven seconds on two slow cores.
    assert int(wait) + 20 <= spec["terminationGracePeriodSeconds"]


def test_the_server_s_pods_answer_until_others_do_and_have_time_to_end() -> None:
    deployment = SERVE["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    service, budget = SERVE["Service"]["spec"], SERVE["PodDisruptionBudget"]["spec"]
    assert labels == deployment["selector"]["matchLabels"] == service["selector"] == budget["selector"]["matchLabels"]
    # A pod goes once another is ready, and a drained node leaves one.
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["maxUnavailable"] < deployment["replicas"]
    spec = deployment["template"]["spec"]
    (container,) = spec["containers"]
    program, command, *options = container["command"]
    assert (program, command) == ("gausscse", "serve")
    asked = serve._parser().parse_args(options)
    assert (asked.name, asked.host) == ("gausscse", "0.0.0.0")
    (port,), (outside,) = container["ports"], service["ports"]
    assert (port["containerPort"], port["name"]) == (asked.port, outside["targetPort"])
    probes = {name: container[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    paths = {name: (probe["httpGet"]["path"], probe["httpGet"]["port"]) for name, probe in probes.items()}
    assert paths == {"startup": ("/live", "http"), "liveness": ("/live", "http"), "readiness": ("/ready", "http")}
    # Ray gets half a minute to start, and as long again for all that is imported on a slow machine.
    assert probes["startup"]["periodSeconds"] * probes["startup"]["failureThreshold"] >= 120
    sleep, wait = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    assert int(wait) + asked.max_seconds + 20 <= spec["terminationGracePeriodSeconds"]
    # Its private Ray counts the cores of the limit, and its objects fit into /dev/shm.
    assert container["resources"]["limits"] == container["resources"]["requests"]
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    assert (mount["mountPath"], mount["name"], volume["emptyDir"]["medium"]) == ("/dev/shm", volume["name"], "Memory")
    assert int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 1024 > ClusterParams().object_store_mb


def test_each_pod_gets_the_secrets_it_needs(objects: dict[str, dict[str, Any]]) -> None:
    def named(value: Any, key: str) -> set[str]:
        """The secrets that a value refers to by such a key."""
        return set(re.findall(rf'"{key}": {{[^}}]*"name": "([\w-]+)"', json.dumps(value)))

    head, workers = (group["template"] for group in groups(objects["RayCluster"]))
    # The head drives jobs, which log to MLflow; KubeRay gives it Redis's password, and all the token.
    assert named(head, "secretRef") == {"gausscse-s3", "gausscse-mlflow"}
    assert named(workers, "secretRef") == {"gausscse-s3"}
    assert named(objects["StatefulSet"], "secretKeyRef") == {"gausscse-redis"}
    # The server has no key of the store: MLflow's server sends it the files of the models.
    server = SERVE["Deployment"]["spec"]["template"]
    assert named(server, "secretKeyRef") == {"gausscse-mlflow", "gausscse-serve"}
    assert named(server, "secretRef") == set()
    for template in (head, workers, objects["StatefulSet"]["spec"]["template"], server):
        for container in template["spec"]["containers"]:
            assert not any("value" in one and re.search("TOKEN|SECRET|PASSWORD|KEY", one["name"]) for one in container["env"])
