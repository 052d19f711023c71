"""The GPU memory that one process of each role needs, from the model's shape and the configuration: an estimate without a GPU.

Weights, gradients and optimizer state follow exactly from the sharding; activations from what autograd saves; the rest (what a
wrapper gathers, an engine's own buffers, a process's context) is rounded up. Bytes throughout.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cluster.shapes import ModelShape
from configs.parallel import resolve_strategy
from configs.schema import GrpoConfig, RerankerConfig, Stage1Config

FLOAT32 = 4
LOGIT_CHUNK = 2048
"""Rows of logits held at once: ``models.token_log_probs.LOGIT_CHUNK``, which is not imported here because torch would be."""

PROCESS = 2_000_000_000
"""CUDA context, cuBLAS and NCCL workspaces, fragmentation: an allowance of one process, not measured."""

REDUCE_BUCKET = 200_000_000
"""``objectives.engine_deepspeed.REDUCE_BUCKET`` in bytes."""

ZERO3_LIVE = 1_000_000_000
"""Parameters that ZeRO-3 may keep gathered (``stage3_max_live_parameters``, DeepSpeed's default)."""

VLLM_BATCHED_TOKENS = 8192
VLLM_SEQUENCES = 256
VLLM_GRAPHS = 1_500_000_000
"""vLLM's tokens and sequences of one forward pass, and an allowance for its CUDA graphs."""


@dataclass(frozen=True)
class Memory:
    """What one process holds.

    Attributes:
        weights: parameters, master copies of a sharded optimizer included.
        gradients: between the first backward pass and the update.
        optimizer: its state.
        activations: what a micro-batch keeps for its backward pass, logits included; without one, what is alive at once.
        kv_cache: keys and values of a sampling engine.
        working: casts to bfloat16, gathered weights, communication buffers.
        update: what the optimizer's step needs for itself, when activations are gone.
        process: see ``PROCESS``.
        limit: the most that the process takes by its own setting (vLLM); 0: no such setting.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    kv_cache: float = 0.0
    working: float = 0.0
    update: float = 0.0
    process: float = PROCESS

    @property
    def at_rest(self) -> float:
        """Between updates."""
        return self.weights + self.optimizer + self.process

    @property
    def peak(self) -> float:
        """The most at any time: while a micro-batch is computed, or while the weights are updated."""
        computing = self.gradients + self.activations + self.kv_cache + self.working
        return self.at_rest + max(computing, self.gradients + self.update)

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "peak": self.peak}


# -- what is trained ----------------------------------------------------------------------------------------------------


def trained(shape: ModelShape, optimizer: str, dtype: str, strategy: str, zero_stage: int, workers: int) -> Memory:
    """Weights, gradients, optimizer state and buffers of one of N processes that train P parameters; no activations.

    ============  =================  ==============  ==================  ====================================
    strategy      weights            gradients       AdamW               gathered
    ============  =================  ==============  ==================  ====================================
    single        4P                 4P              8P
    ZeRO-0        4P                 4P              8P
    ZeRO-1        4P + 4P/N          4P              8P/N                buckets
    ZeRO-2        4P + 4P/N          4P/N            8P/N                buckets
    ZeRO-3        4P/N + 4P/N        4P/N            8P/N                4 min(P, 10^9)
    FSDP2         4P/N               4P/N            8P/N                2 layers and the embeddings, with
                                                                         their gradients
    ============  =================  ==============  ==================  ====================================

    ZeRO 1-3 keeps float32 masters apart from the parameters, which are float32 themselves. Adafactor keeps row and column means
    in place of 8P. In bfloat16 autograd holds on to a cast of every layer's matrices, under every strategy. AdamW's step needs
    another 4P (of a shard 4P/N), ZeRO's a flat copy of the shard's gradients, Adafactor's three times the largest matrix.
    """
    whole = float(FLOAT32 * shape.parameters)
    shard = whole / workers
    factored = optimizer == "adafactor"
    state = float(FLOAT32 * shape.adafactor_moments()) if factored else 2 * whole
    step = 3 * float(FLOAT32 * shape.embedding_parameters) if factored else whole
    casts = 2.0 * shape.layers * shape.layer_matrix_parameters if dtype == "bfloat16" else 0.0
    embeddings = FLOAT32 * (shape.parameters - shape.layers * shape.layer_parameters)
    if strategy == "fsdp2":
        gathered = 2.0 * (2 * FLOAT32 * shape.layer_parameters + embeddings)
        return Memory(shard, shard, 2 * shard, working=casts + gathered, update=shard)
    if strategy == "deepspeed" and zero_stage == 3:
        gathered = FLOAT32 * min(shape.parameters, ZERO3_LIVE) + REDUCE_BUCKET
        return Memory(2 * shard, shard, 2 * shard, working=casts + gathered, update=2 * shard)
    if strategy == "deepspeed" and zero_stage > 0:
        gradients = whole if zero_stage == 1 else shard
        return Memory(whole + shard, gradients, 2 * shard, working=casts + 2 * REDUCE_BUCKET, update=2 * shard)
    return Memory(whole, whole, state, working=casts, update=step)


def frozen(shape: ModelShape, dtype: str, strategy: str, zero_stage: int, workers: int) -> Memory:
    """Weights and buffers of one of N processes that only run P parameters forward; a layer's casts are dropped after use."""
    whole = float(FLOAT32 * shape.parameters)
    cast = 2.0 * max(shape.layer_matrix_parameters, shape.embedding_parameters) if dtype == "bfloat16" else 0.0
    embeddings = FLOAT32 * (shape.parameters - shape.layers * shape.layer_parameters)
    if strategy == "fsdp2":
        return Memory(whole / workers, working=cast + 2 * FLOAT32 * shape.layer_parameters + embeddings)
    if strategy == "deepspeed" and zero_stage == 3:
        return Memory(whole / workers, working=cast + FLOAT32 * min(shape.parameters, ZERO3_LIVE))
    return Memory(whole, working=cast)


# -- activations --------------------------------------------------------------------------------------------------------


def saved_activations(shape: ModelShape, tokens: int, dtype: str) -> float:
    """What ``tokens`` padded tokens keep for the backward pass: every layer's share, and the final norm's 8d."""
    return float(tokens * (shape.layers * shape.layer_activation_bytes(dtype) + 8 * shape.hidden))


def passing_activations(shape: ModelShape, tokens: int, dtype: str) -> float:
    """What is alive at once in a forward pass without gradients: at most one layer's share, and its input and output."""
    return float(tokens * (shape.layer_activation_bytes(dtype) + 8 * shape.hidden))


def logits(shape: ModelShape, rows: int, dtype: str, *, backward: bool) -> float:
    """Logits, log-softmax and two more of their size in float32 for at most ``LOGIT_CHUNK`` rows, and the head's cast.

    More rows are recomputed chunk by chunk in the backward pass, so they never exist together.
    """
    size = 2 if dtype == "bfloat16" else 4
    head = 2.0 * shape.embedding_parameters if dtype == "bfloat16" and backward else 0.0
    return head + float(min(rows, LOGIT_CHUNK) * shape.vocab * (size + 12))


def _micro_batch(budget: int, longest: int, total: int) -> int:
    """Padded tokens of the largest micro-batch: the budget, or a single sequence that exceeds it; at most all there are."""
    return min(max(budget, longest), total) if budget else total


# -- the roles ----------------------------------------------------------------------------------------------------------


def stage1_worker(config: Stage1Config, shape: ModelShape) -> Memory:
    """One training process of Stage I, every input at its longest.

    With a gradient cache one micro-batch's activations exist at a time; without one, those of this process's share of the batch.
    """
    data, loss, parallel = config.data, config.loss, config.parallel
    strategy = resolve_strategy(parallel, "deepspeed")
    base = trained(shape, config.optim.name, config.model.dtype, strategy, parallel.zero_stage, parallel.workers)
    share = -(-data.train_batch_size // parallel.workers)
    total = share * (2 * data.max_length + (1 + data.negatives_per_record) * data.document_max_length)
    longest = max(data.max_length, data.document_max_length)
    tokens = _micro_batch(loss.micro_batch_tokens, longest, total) if loss.gradient_cache else total
    encoding = saved_activations(shape, tokens, config.model.dtype)
    written = _micro_batch(loss.micro_batch_tokens, data.lm_max_length, share * data.lm_max_length)
    writing = 0.0
    if loss.lambda_lm > 0:
        rows = min(written, share * data.rationale_max_length)
        writing = saved_activations(shape, written, config.model.dtype)
        writing += logits(shape, rows, config.model.dtype, backward=True)
    return _with(base, activations=max(encoding, writing))


def reranker_worker(config: RerankerConfig, shape: ModelShape) -> Memory:
    """One training process of the reranker, every pair at its longest: a micro-batch, or its share of a window."""
    data, loss, parallel = config.data, config.loss, config.parallel
    strategy = resolve_strategy(parallel, "deepspeed")
    base = trained(shape, config.optim.name, config.model.dtype, strategy, parallel.zero_stage, parallel.workers)
    window = loss.window_groups * data.max_candidates * data.max_length
    tokens = _micro_batch(loss.micro_batch_tokens, data.max_length, window) if loss.gradient_cache else window
    activations = saved_activations(shape, tokens, config.model.dtype)
    if loss.lambda_lm > 0:  # requests of a pair's length, whose rationales alone have logits
        rows = -(-data.train_batch_size // parallel.workers) * data.rationale_max_length
        activations += logits(shape, min(rows, tokens), config.model.dtype, backward=True)
    return _with(base, activations=activations)


def policy_worker(config: GrpoConfig, shape: ModelShape) -> Memory:
    """One process of the policy, a micro-batch of the longest prompts and responses."""
    parallel, dtype = config.actor.parallel, config.model.dtype
    strategy = resolve_strategy(parallel, "fsdp2")
    base = trained(shape, config.actor.optim.name, dtype, strategy, parallel.zero_stage, parallel.workers)
    tokens, rows = _rollout_micro_batch(config, config.actor.ppo_max_token_len, parallel.workers)
    head = logits(shape, rows, dtype, backward=True)
    return _with(base, activations=saved_activations(shape, tokens, dtype) + head)


def reference_worker(config: GrpoConfig, shape: ModelShape) -> Memory:
    """One process of the frozen reference."""
    parallel, dtype = config.ref.parallel, config.model.dtype
    base = frozen(shape, dtype, resolve_strategy(parallel, "fsdp2"), parallel.zero_stage, parallel.workers)
    budget = config.ref.log_prob_max_token_len or config.actor.ppo_max_token_len
    tokens, rows = _rollout_micro_batch(config, budget, parallel.workers)
    head = logits(shape, rows, dtype, backward=False)
    return _with(base, activations=passing_activations(shape, tokens, dtype) + head)


def retriever_worker(config: GrpoConfig, shape: ModelShape) -> Memory:
    """One process of the frozen reward retriever."""
    data, dtype = config.data, config.model.dtype
    longest = max(data.max_query_length, data.document_max_length)
    documents = 11 * data.train_batch_size * data.document_max_length
    views = (1 + config.rollout.n) * data.train_batch_size * data.max_query_length
    tokens = _micro_batch(config.reward.micro_batch_tokens, longest, max(documents, views))
    return _with(frozen(shape, dtype, "single", 0, 1), activations=passing_activations(shape, tokens, dtype))


def rollout_worker(config: GrpoConfig, shape: ModelShape, gpu: float) -> Memory:
    """One rollout engine on a GPU of ``gpu`` bytes.

    vLLM takes ``rollout.gpu_memory_utilization`` of the GPU: weights in ``model.dtype``, its own buffers, and all that is left
    for keys and values. The transformers engine holds float32 weights and the keys and values of ``rollout.max_batch_tokens``.
    """
    rollout, data, dtype = config.rollout, config.data, config.model.dtype
    size = 2 if dtype == "bfloat16" else 4
    bucket = rollout.weight_bucket_mb * 2.0**20
    if rollout.name == "hf":
        whole = float(FLOAT32 * shape.parameters)
        groups = (
            max(1, rollout.max_batch_tokens // (rollout.n * data.max_prompt_length))
            if rollout.max_batch_tokens
            else (data.train_batch_size)
        )
        cache = groups * rollout.n * (data.max_prompt_length + data.max_response_length) * shape.kv_bytes(dtype)
        prompt = passing_activations(shape, groups * data.max_prompt_length, dtype)
        # sampling sorts the vocabulary of each sample in float64
        sampling = float(groups * rollout.n * shape.vocab * 8 * 4)
        cast = 2.0 * shape.embedding_parameters if dtype == "bfloat16" else 0.0
        return Memory(whole, activations=max(prompt, sampling), kv_cache=cache, working=cast + bucket)
    cache = rollout.gpu_memory_utilization * gpu - beside_cache(shape, dtype)
    return Memory(
        float(size * shape.parameters), activations=_vllm_buffers(shape, dtype), kv_cache=cache, working=bucket
    )


def beside_cache(shape: ModelShape, dtype: str) -> float:
    """What one vLLM process takes beside keys and values: weights, its own buffers, and its context."""
    size = 2 if dtype == "bfloat16" else 4
    return size * shape.parameters + _vllm_buffers(shape, dtype) + PROCESS


def _vllm_buffers(shape: ModelShape, dtype: str) -> float:
    size = 2 if dtype == "bfloat16" else 4
    layer = size * (6 * shape.hidden + 4 * shape.intermediate + 2 * shape.query_width + 2 * shape.kv_width)
    return float(VLLM_BATCHED_TOKENS * layer + VLLM_SEQUENCES * shape.vocab * FLOAT32 * 3 + VLLM_GRAPHS)


def kv_tokens(memory: Memory, config: GrpoConfig, shape: ModelShape) -> int:
    """Tokens whose keys and values fit into a rollout engine at once; negative where not even its weights fit."""
    return int(memory.kv_cache // shape.kv_bytes(config.model.dtype))


def _rollout_micro_batch(config: GrpoConfig, budget: int, workers: int) -> tuple[int, int]:
    data = config.data
    samples = -(-data.train_batch_size * config.rollout.n // workers)
    longest = data.max_prompt_length + data.max_response_length
    tokens = _micro_batch(budget, longest, samples * longest)
    return tokens, min(tokens, samples * data.max_response_length)


def _with(memory: Memory, **changes: Any) -> Memory:
    return Memory(**{**asdict(memory), **changes})
