"""Batches between the driver and a worker group, as verl's DataProto: balanced over the workers, and put back in order.

Importing this module imports verl: the driver does so when it starts a group, a worker anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from verl.protocol import DataProto
from verl.utils.seqlen_balancing import get_seqlen_balanced_partitions

from actors.policy_batch import PolicyShare

# On a machine without a GPU verl says twice in every process that there is none.
logging.getLogger("verl.plugin.platform.platform_manager").setLevel(logging.ERROR)

PADDING, ROLLOUT, RATIONALE = 0, 1, 2
"""What a row is: nothing, a rollout, or a teacher rationale of the SFT loss."""

Rows = list[list[int]]
"""For each worker the rows it gets; -1 stands for a row of padding. All workers get equally many."""


def balanced_rows(lengths: Sequence[int], workers: int) -> Rows:
    """Spread rows over workers so that each gets the same number of rows and about the same number of tokens."""
    padded = [*lengths, *[0] * (-len(lengths) % workers)]
    if not padded:
        return [[] for _ in range(workers)]
    parts: Any = get_seqlen_balanced_partitions(padded, workers, equal_size=True)
    return [[row if row < len(lengths) else -1 for row in part] for part in parts]


def sequence_proto(prompts: Rows, responses: Rows, workers: int) -> tuple[DataProto, Rows]:
    """Prompts and responses to be scored, and which worker gets which of them."""
    rows = balanced_rows([len(p) + len(r) for p, r in zip(prompts, responses, strict=True)], workers)
    order = [row for part in rows for row in part]
    return DataProto.from_dict(_tokens(prompts, responses, order, [ROLLOUT] * len(prompts))), rows


def sequences_of(proto: DataProto) -> tuple[Rows, Rows]:
    """A worker's prompts and responses; what pads the batch is left out."""
    return _sequences(proto, ROLLOUT)


def scores_proto(scores: Sequence[np.ndarray], like: DataProto, seconds: float) -> DataProto:
    """A worker's answer to :func:`sequence_proto`: one float32 array a row of ``like`` that is no padding.

    Args:
        seconds: the time it took, see :func:`scores_in_order`.
    """
    out = torch.zeros(like.batch["responses"].shape)
    kept = (like.batch["kind"] == ROLLOUT).nonzero().flatten().tolist()
    for row, values in zip(kept, scores, strict=True):
        out[row, : len(values)] = torch.from_numpy(values)
    return DataProto.from_dict({"scores": out}, meta_info={"metrics": {"seconds": seconds}})


def scores_in_order(answers: list[DataProto], rows: Rows, lengths: Sequence[int]) -> tuple[list[np.ndarray], float]:
    """The workers' answers in the order of the sequences, and the seconds of the slowest worker.

    Args:
        answers: by worker.
        rows: as :func:`sequence_proto` returned them.
        lengths: response tokens of each sequence.
    """
    joined = DataProto.concat(answers)
    scores = joined.batch["scores"].numpy()
    out: list[np.ndarray] = [np.empty(0, dtype=np.float32)] * len(lengths)
    for values, row in zip(scores, (row for part in rows for row in part), strict=True):
        if row >= 0:
            out[row] = values[: lengths[row]].copy()
    return out, max(joined.meta_info["metrics"]["seconds"])


def policy_proto(share: PolicyShare, workers: int) -> DataProto:
    """A whole batch, cut for the workers: rollouts and SFT rationales are balanced each for themselves."""
    rollouts = balanced_rows([len(p) + len(r) for p, r in zip(share.prompts, share.responses, strict=True)], workers)
    taught = balanced_rows(
        [len(p) + len(r) for p, r in zip(share.sft_prompts, share.sft_rationales, strict=True)], workers
    )
    count = len(share.prompts)
    kinds = [ROLLOUT] * count + [RATIONALE] * len(share.sft_prompts)
    order = [
        row
        for own, sft in zip(rollouts, taught, strict=True)
        for row in (*own, *(r + count if r >= 0 else r for r in sft))
    ]
    tensors = _tokens([*share.prompts, *share.sft_prompts], [*share.responses, *share.sft_rationales], order, kinds)
    advantages = torch.cat([share.advantages, torch.zeros(len(share.sft_prompts) + 1)])
    tensors["advantages"] = advantages[order]  # padding takes the last one, a zero
    width = tensors["responses"].shape[1]
    nothing = [np.empty(0, dtype=np.float32)] * len(share.sft_prompts)
    tensors["ref_log_probs"] = _floats([*share.ref_log_probs, *nothing], order, width)
    if share.rollout_log_probs is not None:
        tensors["rollout_log_probs"] = _floats([*share.rollout_log_probs, *nothing], order, width)
    return DataProto.from_dict(tensors, meta_info={"info": share.info, "sft_tokens": share.sft_tokens})


def share_of(proto: DataProto) -> PolicyShare:
    """The share that a worker got; what pads the batch is left out."""
    prompts, responses = _sequences(proto, ROLLOUT)
    sft_prompts, sft_rationales = _sequences(proto, RATIONALE)
    kept = proto.batch["kind"] == ROLLOUT

    def floats(key: str) -> list[np.ndarray]:
        return [row[: len(r)] for row, r in zip(proto.batch[key][kept].numpy(), responses, strict=True)]

    return PolicyShare(
        prompts=prompts,
        responses=responses,
        advantages=proto.batch["advantages"][kept],
        ref_log_probs=floats("ref_log_probs"),
        rollout_log_probs=floats("rollout_log_probs") if "rollout_log_probs" in proto.batch else None,
        sft_prompts=sft_prompts,
        sft_rationales=sft_rationales,
        info=proto.meta_info["info"],
        sft_tokens=proto.meta_info["sft_tokens"],
    )


def _tokens(prompts: Rows, responses: Rows, order: list[int], kinds: list[int]) -> dict[str, torch.Tensor]:
    """Token ids in ``order``, padded on the right; lengths, never ids, tell where a sequence ends."""
    tensors: dict[str, torch.Tensor] = {"kind": torch.tensor([kinds[row] if row >= 0 else PADDING for row in order])}
    for name, sequences in (("prompts", prompts), ("responses", responses)):
        taken = [torch.tensor(sequences[row] if row >= 0 else [], dtype=torch.int32) for row in order]
        tensors[name] = torch.nn.utils.rnn.pad_sequence(taken, batch_first=True)
        tensors[f"{name}_length"] = torch.tensor([len(t) for t in taken])
    return tensors


def _floats(rows: Sequence[np.ndarray], order: list[int], width: int) -> torch.Tensor:
    out = torch.zeros(len(order), width)
    for place, row in enumerate(order):
        if row >= 0:
            out[place, : len(rows[row])] = torch.from_numpy(np.asarray(rows[row], dtype=np.float32))
    return out


def _sequences(proto: DataProto, kind: int) -> tuple[Rows, Rows]:
    batch: Any = proto.batch[proto.batch["kind"] == kind]
    prompts, responses = (
        [row[:length] for row, length in zip(batch[name].tolist(), batch[f"{name}_length"].tolist(), strict=True)]
        for name in ("prompts", "responses")
    )
    return prompts, responses
