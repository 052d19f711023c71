"""The typed configuration: every key a user can set, its default and what it means.

Keys that verl also has carry verl's names. Defaults are the paper's 0.6B values (Tables 15 and 16); where the paper is silent the
comment says ``ours``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MISSING = "???"
"""Marks a key that has no default, as omegaconf does, whose constant this equals; the schema is importable without it."""


@dataclass
class RunConfig:
    name: str = MISSING  # folder below root; naming an existing run resumes it
    root: str = "runs"
    seed: int = 42
    threads: int = 0  # CPU threads of Stage I's process; 0 leaves torch's choice (Stage II: resources.threads)
    device: str = "auto"  # auto, cpu or cuda
    checkpoints: str = ""  # where checkpoints go; empty: <run folder>/checkpoints


@dataclass
class ModelConfig:
    path: str = MISSING  # folder or hub id of a causal LM
    dtype: str = "bfloat16"  # compute precision; master weights are always float32
    share_prefixes: bool = True  # training computes what sequences of a pass begin with once, where that is exact; ours


@dataclass
class OptimizerConfig:
    name: str = "adamw"  # adamw or adafactor
    lr: float = 2e-5
    schedule: str = "constant"  # or linear: down to zero over the run (Stage I alone); ours
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])  # ours
    weight_decay: float = 0.01  # ours
    clip_grad: float = 1.0  # ours; 0 switches clipping off


@dataclass
class TrainerConfig:
    total_epochs: int = 1
    total_steps: int = 0  # stop after this many updates; 0: no limit
    save_freq: int = 50  # updates between checkpoints; 0: only the final one
    max_ckpt_to_keep: int = 2
    test_freq: int = 25  # updates between recall measurements on held-out requests; 0: never
    export: bool = True  # write export/ (retriever) and export/causal_lm at the end
    export_max_length: int = 4096  # tokens the exported retriever keeps of a request or document
    max_restarts: int = 3  # restarts of a training group from its last checkpoint after a lost process; ours


@dataclass
class ParallelConfig:
    """How several processes train one model; the effective batch is the same for any number of them. Ours."""

    workers: int = 1
    min_workers: int = (
        0  # Stage I: go on with this many when nodes are lost, up to workers when they come; 0: workers, fixed
    )
    strategy: str = (
        "auto"  # single, deepspeed or fsdp2; auto: single for one worker, else deepspeed (Stage I) or fsdp2 (GRPO)
    )
    zero_stage: int = 2  # deepspeed: 0 replicas, 1 shards optimizer state, 2 gradients too, 3 weights too


@dataclass
class TrackingConfig:
    wandb: str = "offline"  # online, offline or disabled
    project: str = "skillreason"


@dataclass
class ValidationConfig:
    corpus_file: str = ""  # candidates for in-training recall; empty: every document of the training records
    max_queries: int = 256
    max_documents: int = 2000  # a deterministic sample that keeps every target; ours


@dataclass
class Stage1DataConfig:
    train_file: str = MISSING  # Stage-I records (.jsonl, .jsonl.gz, .parquet)
    exclusions_file: str = ""  # exclusion graph (JSON adjacency); neighbours of a positive leave its denominator
    train_batch_size: int = 256
    max_length: int = 2048
    document_max_length: int = 2048
    lm_max_length: int = 512
    rationale_max_length: int = 96
    rationale_prompt: str = ""  # paper or short; empty: what the model was trained with, or paper
    negatives_per_record: int = 10  # the first k of each record's ten
    sampler: str = "separated"  # or unique_skill: no batch has a skill twice, whatever explicit negatives it has
    heldout_fraction: float = 0.0  # share of skills, by hash, whose records are kept for validation


@dataclass
class Stage1LossConfig:
    tau: float = 0.05
    lambda_raw: float = 1.0
    lambda_cot: float = 1.0
    lambda_kl: float = 5.0
    kl_temperature: float = 1.0
    kl_start_update: int = 30  # updates before the KL term is switched on
    lambda_lm: float = 0.2
    lm_reduction: str = "token_mean"  # or sum
    micro_batch_tokens: int = 16384  # tokens of one forward pass, padding included; 0: the whole batch at once
    gradient_cache: bool = True


@dataclass
class Stage1ResourcesConfig:
    """Ray resources of one training worker, where there are several."""

    worker_cpus: float = 1.0
    worker_gpus: float = 0.0
    wait_s: float = 1800.0  # how long to wait for an autoscaler to bring what the cluster lacks


@dataclass
class Stage1Config:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: Stage1DataConfig = field(default_factory=Stage1DataConfig)
    loss: Stage1LossConfig = field(default_factory=Stage1LossConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    resources: Stage1ResourcesConfig = field(default_factory=Stage1ResourcesConfig)
    optim: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass
class RerankerDataConfig:
    train_file: str = MISSING  # candidate groups (.jsonl, .jsonl.gz), see skillreason data build
    corpus_file: str = MISSING  # the skills that the groups name
    train_batch_size: int = 128  # groups of the effective batch; the last, partial one is trained on too
    max_candidates: int = 20  # of a group; positives stay, then the retriever's order counts
    max_length: int = 4096  # tokens of a query-document pair with its template
    rationale_max_length: int = 96
    instruction: str = (
        ""  # what the template's <Instruct> says; empty: that of C.2.2 of Skill2Query, which is about skills
    )
    answers: str = "yes/no"  # the two words whose logits are compared, each one token of the model
    document_format: str = "skillreason"  # or skill2query: labeled lines
    query_chars: int = 0  # characters kept of a query; 0: all
    description_chars: int = 300
    body_chars: int = 2500
    heldout_fraction: float = 0.0  # share of skills, by hash: groups that one of them answers are kept for validation
    heldout_groups: int = 256  # most groups that are measured in training; ours


@dataclass
class RerankerLossConfig:
    tau: float = 1.0  # of the scores in eq. 17
    lambda_distill: float = 1.0  # query-analysis distillation
    distill: str = "cosine"  # of the query's representations; or kl: of the group's score distributions
    lambda_lm: float = 0.2  # the rationale given the query
    micro_batch_tokens: int = 16384  # padded tokens of one forward pass; 0: all pairs of a window at once
    window_groups: int = 1  # groups per process whose pairs are scored together: the paper's local step
    gradient_cache: bool = (
        True  # where a window exceeds micro_batch_tokens, score it twice instead of keeping activations
    )


@dataclass
class RerankerConfig:
    """The reranker of E.5 and Table 17; Skill2Query's (C.2.2, C.3.2) is another YAML file."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    data: RerankerDataConfig = field(default_factory=RerankerDataConfig)
    loss: RerankerLossConfig = field(default_factory=RerankerLossConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    resources: Stage1ResourcesConfig = field(default_factory=Stage1ResourcesConfig)
    optim: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=1e-5))
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)


@dataclass
class GrpoDataConfig:
    train_file: str = MISSING  # Stage-II records
    exclusions_file: str = ""
    train_batch_size: int = 112  # query groups a step
    max_prompt_length: int = 1024
    max_response_length: int = 192
    max_query_length: int = 2048  # of the reward's query views
    document_max_length: int = 2048
    heldout_fraction: float = 0.0


@dataclass
class RolloutConfig:
    name: str = "auto"  # vllm, hf (transformers) or auto: vllm where there is a GPU
    n: int = 8  # G
    temperature: float = 0.8
    top_p: float = 0.95
    workers: int = 1
    min_workers: int = (
        0  # the pool shrinks to this many when nodes are lost and grows to workers when they come; 0: workers
    )
    weight_transfer: str = (
        "object_store"  # or broadcast: a process group of policy and rollouts (NCCL on GPUs, else gloo)
    )
    weight_bucket_mb: int = 512  # weights travel in pieces of this size
    max_batch_tokens: int = 65536  # padded prompt tokens x n decoded together (hf engine)
    # vllm engine; ours
    sleep: bool = False  # free the engine's GPU memory while the policy trains; what colocated roles want
    max_model_len: int = 0  # tokens of a prompt with its response; 0: max_prompt_length + max_response_length of data
    gpu_memory_utilization: float = 0.4  # share of the GPU for its weights and its keys and values
    kv_cache_gb: float = 1.0  # memory for keys and values where there is no GPU
    enforce_eager: bool = False  # no CUDA graphs; always so without a GPU


@dataclass
class ActorConfig:
    optim: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(lr=2e-6))
    clip_ratio: float = 0.2
    clip_ratio_c: float = 3.0
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    ppo_epochs: int = 1  # updates per batch
    ppo_max_token_len: int = 16384  # tokens of one forward pass, padding included; a shared prompt counts once
    loss_agg_mode: str = "token-mean"
    sft_coef: float = 0.0  # E.3's auxiliary SFT loss on the teacher rationale
    parallel: ParallelConfig = field(default_factory=ParallelConfig)


@dataclass
class ReferenceConfig:
    """The frozen reference group."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    log_prob_max_token_len: int = 0  # as actor.ppo_max_token_len, and 0: the same


@dataclass
class RolloutCorrectionConfig:
    """Truncated importance sampling against the mismatch between the engine that samples and the policy that learns. Off, as in
    the paper; it needs rollout.top_p=1, see docs/numerics.md."""

    rollout_is: str = ""  # token or sequence; empty: off
    rollout_is_threshold: float = 2.0  # weights are cut at this value


@dataclass
class TermConfig:
    """One reward term: a built-in by its name, or ``function: package.module:function``."""

    weight: float = 1.0
    function: str = ""  # empty: the built-in with the term's name
    params: dict[str, Any] = field(default_factory=dict)


@dataclass
class RewardConfig:
    terms: dict[str, TermConfig] = field(default_factory=dict)
    mask_positive: str = "skill_id"  # or occurrence: eq. 15 read literally
    mask_exclusions: bool = False  # also keep exclusion-graph neighbours of the positive out of the hard negatives
    retriever_path: str = ""  # frozen reward retriever; empty: model.path
    micro_batch_tokens: int = 16384
    retriever_workers: int = 1
    min_retriever_workers: int = 0  # as rollout.min_workers


@dataclass
class ResourcesConfig:
    """Ray resources of one member of each role."""

    threads: int = 1  # torch threads of every actor
    policy_cpus: float = 1.0
    policy_gpus: float = 0.0
    reference_cpus: float = 0.0
    reference_gpus: float = 0.0
    retriever_cpus: float = 0.0
    retriever_gpus: float = 0.0
    rollout_cpus: float = 0.0
    rollout_gpus: float = 0.0
    colocate: bool = False  # all roles share the GPUs of the policy's workers instead of reserving their own
    wait_s: float = 1800.0  # how long to wait for an autoscaler to bring what the cluster lacks; 0: refuse at once


@dataclass
class GrpoConfig:
    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)  # path: the Stage-I full causal LM
    data: GrpoDataConfig = field(default_factory=GrpoDataConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    actor: ActorConfig = field(default_factory=ActorConfig)
    ref: ReferenceConfig = field(default_factory=ReferenceConfig)
    rollout_correction: RolloutCorrectionConfig = field(default_factory=RolloutCorrectionConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
