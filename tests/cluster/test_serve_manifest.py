"""The RayService file: Ray's own schema check of the Serve config in it, and what it promises to ``serving.app:build``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "cluster" / "manifests"


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    manifest = yaml.safe_load((FOLDER / "kuberay-serve.yaml").read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayService")
    return manifest["spec"]


def pods(spec: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = spec["rayClusterConfig"]
    return [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]


def test_ray_accepts_the_serve_config_and_the_builder_its_arguments(spec: dict[str, Any], tmp_path: Path) -> None:
    from ray.serve.schema import ServeDeploySchema

    from serving.app import build

    config = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    (application,) = config.applications
    assert application.import_path == "serving.app:build"
    arguments = dict(application.args)
    assert arguments["indexes"][0].partition("=")[2].startswith("/shared/")
    build(arguments | {"indexes": [f"library={tmp_path}"]})


def test_it_listens_beyond_the_pod_only_with_a_token(spec: dict[str, Any]) -> None:
    assert yaml.safe_load(spec["serveConfigV2"])["http_options"]["host"] == "0.0.0.0"
    for pod in pods(spec):
        (container,) = pod["containers"]
        (token,) = (entry for entry in container["env"] if entry["name"] == "SKILLREASON_TOKEN")
        reference = token["valueFrom"]["secretKeyRef"]
        assert not reference.get("optional")
        assert reference["name"] != spec["rayClusterConfig"]["authOptions"]["secretName"]


def test_every_replica_that_may_run_has_its_cpus(spec: dict[str, Any]) -> None:
    arguments = yaml.safe_load(spec["serveConfigV2"])["applications"][0]["args"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert arguments["cpus"] * arguments["max_replicas"] <= group["maxReplicas"] * int(
        container["resources"]["limits"]["cpu"]
    )
    assert arguments["cpus"] * arguments["replicas"] <= group["minReplicas"] * int(
        container["resources"]["limits"]["cpu"]
    )


def test_its_pods_are_those_of_the_training_clusters_in_image_version_and_rights(spec: dict[str, Any]) -> None:
    training = yaml.safe_load((FOLDER / "kuberay-raycluster-1x8.yaml").read_text(encoding="utf-8"))["spec"]
    assert spec["rayClusterConfig"]["rayVersion"] == training["rayVersion"]
    model = training["headGroupSpec"]["template"]["spec"]
    for pod in pods(spec):
        assert pod["securityContext"] == model["securityContext"]
        for key in ("image", "securityContext"):
            assert pod["containers"][0][key] == model["containers"][0][key]
