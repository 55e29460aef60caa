"""Kubernetes and Compose: valid YAML that starts the same commands with the same GPUs."""

from typing import Any

import pytest
import yaml

from agent.launch import compose, kubernetes
from agent.launch.types import TOKEN
from predictor.errors import BadInput
from predictor.types import Deployment, Layout
from tests.agent.launch_examples import EXAMPLES, plan_of


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(kubernetes(plan_of(EXAMPLES[name], own_network=True), "tuned"))]


def sets(name: str) -> list[dict[str, Any]]:
    return [found for found in documents(name) if found["kind"] == "StatefulSet"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_asks_for_the_gpus_of_the_deployment(name: str) -> None:
    deployment = EXAMPLES[name]
    resource = "amd.com/gpu" if deployment.gpu.startswith("MI") else "nvidia.com/gpu"
    asked = sum(
        found["spec"]["replicas"] * container.get("resources", {}).get("limits", {}).get(resource, 0)
        for found in sets(name)
        for container in found["spec"]["template"]["spec"]["containers"]
    )
    assert asked == deployment.gpus


@pytest.mark.parametrize("name", EXAMPLES)
def test_kubernetes_names_only_what_it_makes(name: str) -> None:
    """Every host in a command is the pod itself or a pod of one of these sets; every Service finds its pods."""
    found = documents(name)
    text = yaml.safe_dump_all(found)
    assert TOKEN.search(text) is None
    services = {one["metadata"]["name"]: one["spec"]["selector"] for one in found if one["kind"] == "Service"}
    labels = [one["spec"]["template"]["metadata"]["labels"] for one in sets(name)]
    assert all(selector in labels for selector in services.values())
    assert all(one["spec"]["serviceName"] in services for one in sets(name))
    pods = {
        f"{one['metadata']['name']}-{ordinal}.{one['spec']['serviceName']}"
        for one in sets(name)
        for ordinal in range(one["spec"]["replicas"])
    }
    configs = [data for one in found if one["kind"] == "ConfigMap" for data in one["data"].values()]
    commands = [part for one in sets(name) for part in one["spec"]["template"]["spec"]["containers"][0]["command"]]
    mentioned = {word for part in (*commands, *configs) for word in _pod_names(part)}
    assert mentioned <= pods


def _pod_names(text: str) -> set[str]:
    return {word for word in text.replace("/", " ").replace(":", " ").replace("'", " ").split() if ".tuned-" in word}


def test_replicas_of_a_role_share_one_set() -> None:
    found = {one["metadata"]["name"]: one["spec"]["replicas"] for one in sets("vllm-h100-replicas")}
    assert found == {"tuned-server": 4, "tuned-router": 1}


def test_a_replica_over_two_nodes_has_a_set_a_node() -> None:
    found = {one["metadata"]["name"]: one for one in sets("vllm-h200-disaggregated")}
    assert set(found) == {"tuned-prefill", "tuned-decode-0", "tuned-decode-0-node1", "tuned-router"}
    worker = found["tuned-decode-0-node1"]["spec"]["template"]["spec"]["containers"][0]
    assert (
        worker["command"][worker["command"].index("--data-parallel-address") + 1] == "tuned-decode-0-0.tuned-decode-0"
    )
    assert "readinessProbe" not in worker  # it serves no HTTP


def test_kubernetes_needs_a_plan_with_its_own_network() -> None:
    with pytest.raises(BadInput, match="own_network"):
        kubernetes(plan_of(EXAMPLES["vllm-h100-replicas"]), "tuned")


def test_mpi_is_left_to_the_shell() -> None:
    wide = plan_of(Deployment("DeepSeek-R1", "H200", "TensorRT-LLM", layout=Layout(tp=16)), own_network=True)
    with pytest.raises(BadInput, match="MPI"):
        kubernetes(wide, "tuned")
    with pytest.raises(BadInput, match="MPI"):
        compose(wide)


@pytest.mark.parametrize("name", EXAMPLES)
def test_compose_starts_every_process_with_its_command(name: str) -> None:
    plan = plan_of(EXAMPLES[name])
    tree = yaml.safe_load(compose(plan))
    assert set(tree["services"]) == {process.name for process in plan.processes}
    for process in plan.processes:
        service = tree["services"][process.name]
        assert len(service["entrypoint"]) == len(process.command.argv)
        assert service.get("profiles", ["node0"]) == [f"node{process.node}"]
        for file in process.command.files:
            source = next(one["source"] for one in service["configs"] if one["target"].endswith(file.name))
            assert yaml.safe_load(tree["configs"][source]["content"])
    assert TOKEN.search(compose(plan)) is None
