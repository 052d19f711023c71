"""``skillreason plan``: where each role of a run goes, the memory it needs there, and what does not fit, without a cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from omegaconf import OmegaConf

from cluster.gpus import Gpu, place_roles
from cluster.memory import (
    PROCESS,
    VLLM_GRAPHS,
    Memory,
    kv_tokens,
    policy_worker,
    reference_worker,
    reranker_worker,
    retriever_worker,
    rollout_worker,
    stage1_worker,
)
from cluster.roles import Bundle, PlacementPlan, RolePlan, plan_placement, role_device
from cluster.shapes import ModelShape, read_shape
from configs import ConfigError, GrpoConfig, RerankerConfig, Stage1Config, load_config
from configs.load import config_path
from configs.parallel import optimizer_conflict, resolve_strategy
from configs.schema import OptimizerConfig, ParallelConfig

GB = 1e9
STRATEGIES = (("deepspeed", 0), ("deepspeed", 1), ("deepspeed", 2), ("deepspeed", 3), ("fsdp2", 0))
WORKERS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Role:
    """One role: ``members`` processes, each taking ``share`` and holding ``memory``, of which ``keys`` decide."""

    name: str
    members: int
    share: Bundle
    memory: Memory
    strategy: str
    keys: str


@dataclass(frozen=True)
class Plan:
    """The answer.

    Attributes:
        alternatives: the trained model's peak under other strategies and numbers of workers, where that can run.
        problems: what does not fit or cannot run, one sentence each.
        notes: what else to know.
    """

    run: str
    model: str
    shape: ModelShape
    gpu_bytes: float
    roles: list[Role]
    gpus: list[Gpu]
    alternatives: list[dict[str, Any]]
    problems: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``; sizes in bytes."""
        return {
            "run": self.run,
            "model": self.model,
            "parameters": self.shape.parameters,
            "gpu_bytes": self.gpu_bytes,
            "roles": [{**asdict(role), "memory": role.memory.as_dict()} for role in self.roles],
            "gpus": [{**asdict(gpu), "peak": gpu.peak} for gpu in self.gpus],
            "alternatives": self.alternatives,
            "problems": self.problems,
            "notes": self.notes,
            "fits": not self.problems,
        }


def make_plan(config: Stage1Config | RerankerConfig | GrpoConfig, gpu_bytes: float, gpus_per_node: int = 8) -> Plan:
    """Sizes and places of a configuration's roles on GPUs of ``gpu_bytes``.

    Raises:
        ConfigError: a model of unknown shape, or resources that cannot be reserved.
    """
    shape, model = read_shape(config.model.path)
    if isinstance(config, GrpoConfig):
        return _plan_grpo(config, shape, model, gpu_bytes, gpus_per_node)
    return _plan_workers(config, shape, model, gpu_bytes, gpus_per_node)


def _plan_workers(
    config: Stage1Config | RerankerConfig, shape: ModelShape, model: str, gpu: float, per_node: int
) -> Plan:
    def worker(parallel: ParallelConfig) -> Memory:
        if isinstance(config, Stage1Config):
            return stage1_worker(replace(config, parallel=parallel), shape)
        return reranker_worker(replace(config, parallel=parallel), shape)

    parallel = config.parallel
    share = Bundle(config.resources.worker_cpus, config.resources.worker_gpus)
    if parallel.workers == 1 and share.gpus == 0 and config.run.device != "cpu":
        share = Bundle(share.cpus, 1.0)  # one worker trains in the driver's process, on the first GPU
    keys = "loss.micro_batch_tokens, parallel.workers"
    role = Role("worker", parallel.workers, share, worker(parallel), _named(parallel, "deepspeed"), keys)
    plan = PlacementPlan((RolePlan("worker", role.members, role.members, share, share),), colocated=False)
    problems: list[str] = []
    if parallel.min_workers:
        least = worker(replace(parallel, workers=parallel.min_workers))
        if least.peak > gpu:
            problems.append(
                f"with parallel.min_workers={parallel.min_workers} a worker needs {least.peak / GB:.1f} of {gpu / GB:g} GB: "
                "a run that has lost nodes would not go on"
            )

    alternatives = _alternatives(config.optim, worker, gpu)
    return _placed(config.run.name, model, shape, gpu, [role], plan, per_node, alternatives, problems, [])


def _plan_grpo(config: GrpoConfig, shape: ModelShape, model: str, gpu: float, per_node: int) -> Plan:
    frozen = config.reward.retriever_path
    retriever = read_shape(frozen, "reward.retriever_path")[0] if frozen else shape
    plan = plan_placement(config)
    if config.rollout.name == "auto" and role_device(config.run.device, plan, "rollout") == "cpu":
        config = replace(config, rollout=replace(config.rollout, name="hf"))
    engine = "vllm" if config.rollout.name != "hf" else "transformers"
    found = {
        "policy": (
            policy_worker(config, shape),
            _named(config.actor.parallel, "fsdp2"),
            "actor.ppo_max_token_len, actor.parallel.workers",
        ),
        "reference": (
            reference_worker(config, shape),
            _named(config.ref.parallel, "fsdp2"),
            "ref.log_prob_max_token_len, ref.parallel.workers",
        ),
        "retriever": (retriever_worker(config, retriever), "single", "reward.micro_batch_tokens"),
        "rollout": (rollout_worker(config, shape, gpu), engine, "rollout.gpu_memory_utilization"),
    }
    roles = [Role(r.role, r.members, r.share, *found[r.role]) for r in plan.roles]
    problems: list[str] = []
    notes: list[str] = []
    if engine == "vllm" and plan.role("rollout").share.gpus > 0:
        tokens = kv_tokens(found["rollout"][0], config, shape)
        longest = config.rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
        group = config.data.max_prompt_length + config.rollout.n * config.data.max_response_length
        if tokens < longest:
            problems.append(
                f"rollout: vLLM has room for {max(tokens, 0)} tokens of keys and values and a sequence has {longest}; raise "
                "rollout.gpu_memory_utilization"
            )
        else:
            notes.append(
                f"a rollout worker holds keys and values of {tokens:,} tokens: {tokens // group} of the longest groups at once"
            )

    def other(changed: ParallelConfig) -> Memory:
        return policy_worker(replace(config, actor=replace(config.actor, parallel=changed)), shape)

    alternatives = _alternatives(config.actor.optim, other, gpu)
    resting: dict[str, float] = {}
    if plan.colocated and config.rollout.sleep:
        resting = {name: memory.at_rest for name, (memory, _, _) in found.items()}
        resting["rollout"] = PROCESS + (
            VLLM_GRAPHS if engine == "vllm" else 0
        )  # asleep: no weights, no keys and values
    return _placed(config.run.name, model, shape, gpu, roles, plan, per_node, alternatives, problems, notes, resting)


def _named(parallel: ParallelConfig, default: str) -> str:
    strategy = resolve_strategy(parallel, default)
    return f"ZeRO-{parallel.zero_stage}" if strategy == "deepspeed" else strategy


def _alternatives(
    optim: OptimizerConfig, memory_of: Callable[[ParallelConfig], Memory], gpu: float
) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for strategy, stage in STRATEGIES:
        if optimizer_conflict(optim, strategy, stage):
            continue
        for workers in WORKERS:
            memory = memory_of(ParallelConfig(workers=workers, strategy=strategy, zero_stage=stage))
            name = "FSDP2" if strategy == "fsdp2" else f"ZeRO-{stage}"
            out.append({"strategy": name, "workers": workers, "peak": memory.peak, "fits": memory.peak <= gpu})
    return out


# -- placing ------------------------------------------------------------------------------------------------------------


def _placed(
    run: str,
    model: str,
    shape: ModelShape,
    gpu: float,
    roles: list[Role],
    plan: PlacementPlan,
    per_node: int,
    alternatives: list[dict[str, Any]],
    problems: list[str],
    notes: list[str],
    resting: Mapping[str, float] | None = None,
) -> Plan:
    gpus = place_roles(roles, plan, per_node)
    without = [role.name for role in roles if role.share.gpus == 0]
    if without:
        where = "on the CPU" if gpus else "on the CPU, or on the node's first GPU where run.device lets them"
        notes.append(f"no GPU is reserved for {', '.join(without)}: {where}; not checked here")
    if resting:
        for place in gpus:
            place.resting = {process: resting[process.rsplit("-", 1)[0]] for process in place.processes}
    for role in roles:
        if role.share.gpus > 0 and role.memory.peak > gpu:
            problems.append(
                f"{role.name}: a process needs {role.memory.peak / GB:.1f} of {gpu / GB:g} GB; change {role.keys} or the strategy"
            )
    for place in gpus:
        if place.peak > gpu and len(place.processes) > 1:
            problems.append(
                f"node {place.node} GPU {place.index}: {', '.join(place.processes)} together need {place.peak / GB:.1f} of "
                f"{gpu / GB:g} GB"
            )
    return Plan(run, model, shape, gpu, roles, gpus, alternatives, problems, notes)


# -- the command --------------------------------------------------------------------------------------------------------


def print_plan(name: str, overrides: Sequence[str], gpu_memory: float, per_node: int, *, as_json: bool) -> bool:
    """Print the plan of a configuration file of a stage or of the reranker; whether everything fits.

    Args:
        gpu_memory: of one GPU, in 10^9 bytes.
    """
    from cluster.plan_text import plan_text

    if not gpu_memory > 0 or per_node < 1:
        raise ConfigError(f"--gpu-memory {gpu_memory:g}, --gpus-per-node {per_node}; expected numbers above 0")
    sections = OmegaConf.to_container(OmegaConf.load(config_path(name)))
    sections = sections if isinstance(sections, dict) else {}
    reranker = "max_candidates" in (sections.get("data") or {})
    stage2 = not sections.keys().isdisjoint({"rollout", "reward", "actor", "ref"})
    config = load_config(GrpoConfig if stage2 else RerankerConfig if reranker else Stage1Config, name, overrides)
    plan = make_plan(config, gpu_memory * GB, per_node)
    print(json.dumps(plan.as_dict(), indent=2) if as_json else plan_text(plan))
    return not plan.problems
