"""The placement plan, and whether it fits a cluster: no Ray needed."""

from __future__ import annotations

import pytest

from cluster.roles import Bundle, NodeRoom, PlacementPlan, plan_placement, role_device, shortfall
from configs import ConfigError, GrpoConfig, load_config

REQUIRED = ["run.name=r", "model.path=m", "data.train_file=t", "reward.terms.margin.weight=1"]


def plan(*overrides: str, base: str | None = None) -> PlacementPlan:
    return plan_placement(load_config(GrpoConfig, base, [*REQUIRED, *overrides]))


def gpu_nodes(*gpus: float, cpus: float = 64) -> list[NodeRoom]:
    return [NodeRoom(f"n{i}", cpus, amount) for i, amount in enumerate(gpus)]


@pytest.mark.parametrize("base", ["grpo_0.6b", "grpo_4b"])
def test_the_papers_runs_fill_one_node_of_eight_gpus(base: str):
    needed = plan(base=base).needed()
    assert sum(bundle.gpus for _, bundle in needed) == 8
    assert shortfall(needed, gpu_nodes(8)) == ""
    assert shortfall(needed, gpu_nodes(7)) != ""


def test_pools_count_at_their_least_and_groups_whole():
    keys = ["rollout.workers=6", "rollout.min_workers=2", "reward.retriever_workers=3", "actor.parallel.workers=2"]
    needed = plan(*keys, "resources.rollout_gpus=1").needed()
    roles = [role for role, _ in needed]
    assert {role: roles.count(role) for role in roles} == {"policy": 2, "reference": 1, "rollout": 2, "retriever": 3}
    assert plan(*keys).role("rollout").members == 6


def test_a_lack_of_gpus_names_what_is_needed_and_what_is_free():
    needed = plan(
        "rollout.workers=6", "resources.policy_gpus=1", "resources.reference_gpus=1", "resources.rollout_gpus=1"
    ).needed()
    text = shortfall(needed, gpu_nodes(2, 2), gpu_nodes(4, 4))
    assert text == (
        "the run needs 8 GPUs in bundles of 1 (policy 1, reference 1, rollout 6); the cluster has 4 of 8 free"
    )


def test_a_bundle_must_fit_onto_one_node():
    needed = plan("rollout.workers=2", "resources.rollout_gpus=2", "resources.policy_cpus=0").needed()
    assert shortfall(needed, gpu_nodes(2, 2)) == ""
    text = shortfall(needed, gpu_nodes(1, 1, 1, 1))
    assert "a bundle of 2 GPUs on one node for rollout" in text
    assert "the largest has 1 GPUs" in text


def test_small_bundles_do_not_take_the_room_of_large_ones():
    # 2 + 1 + 1 on nodes of 2 and 2: only if the two small ones share a node
    needed = [("policy", Bundle(0, 1)), ("reference", Bundle(0, 1)), ("rollout", Bundle(0, 2))]
    assert shortfall(needed, gpu_nodes(2, 2)) == ""


def test_cpus_are_counted_too():
    text = shortfall(
        plan("resources.policy_cpus=90", "resources.rollout_cpus=4.5", "rollout.workers=2").needed(),
        gpu_nodes(0, cpus=4),
    )
    assert text == "the run needs 99 CPUs in bundles of 90 and 4.5 (policy 1, rollout 2); the cluster has 4 free"


def test_colocated_roles_share_the_policys_bundles():
    keys = ["resources.colocate=true", "resources.policy_gpus=1", "actor.parallel.workers=4", "ref.parallel.workers=4"]
    shared = plan(*keys, "rollout.workers=4", "reward.retriever_workers=4")
    assert shared.needed() == [("policy", Bundle(1, 1))] * 4
    # policy, reference, one rollout and one retriever in each bundle
    assert {role.role: role.share for role in shared.roles} == {
        role: Bundle(0.25, 0.25) for role in ("policy", "reference", "rollout", "retriever")
    }


def test_the_shares_of_a_gpu_never_add_up_to_more_than_it():
    keys = ["resources.colocate=true", "resources.policy_gpus=1", "actor.parallel.workers=2", "rollout.workers=5"]
    role = plan(*keys).role("rollout")
    assert role.share.gpus == 0.1666  # policy, reference, three rollouts and one retriever: sixths, rounded down
    assert 6 * role.share.gpus <= 1


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["resources.rollout_gpus=1.5"], r"resources\.rollout_gpus is 1\.5; expected a whole number"),
        (["resources.colocate=true", "resources.policy_gpus=2"], r"resources\.policy_gpus is 2; expected at most 1"),
        (["resources.colocate=true", "ref.parallel.workers=2"], r"ref\.parallel\.workers is 2; expected at most .* 1"),
    ],
)
def test_what_cannot_be_reserved_is_refused_by_key(keys: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        plan(*keys)


def test_a_role_without_a_gpu_stays_off_those_that_others_reserve():
    some = plan("resources.policy_gpus=1", "resources.retriever_gpus=0.5")
    devices = {role.role: role_device("auto", some, role.role) for role in some.roles}
    assert devices == {"policy": "auto", "reference": "cpu", "rollout": "cpu", "retriever": "auto"}
    assert role_device("cuda", some, "rollout") == "cpu"


@pytest.mark.parametrize("keys", [[], ["resources.policy_gpus=1", "resources.colocate=true"]])
def test_where_none_or_all_share_a_gpu_every_role_computes_where_the_run_says(keys: list[str]):
    roles = plan(*keys)
    assert {role_device("auto", roles, role.role) for role in roles.roles} == {"auto"}


def test_vllm_without_a_gpu_beside_roles_with_one_is_refused():
    with pytest.raises(
        ConfigError, match=r"rollout\.name is 'vllm' and resources\.rollout_gpus is 0.*rollout\.name=hf"
    ):
        plan("rollout.name=vllm", "resources.policy_gpus=1")
