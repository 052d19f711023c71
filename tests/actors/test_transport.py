"""Batches cut for workers: nothing is lost or counted twice, the work is balanced, and answers come back in order."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from actors.policy_batch import PolicyShare
from actors.transport import (
    balanced_rows,
    policy_proto,
    scores_in_order,
    scores_proto,
    sequence_proto,
    sequences_of,
    share_of,
)
from objectives.policy_gradient import BatchInfo

LENGTHS = [3, 1, 7, 2, 9, 4, 1]


def floats(row: int, length: int) -> np.ndarray:
    return (100 * row + np.arange(length)).astype(np.float32)


def make_share(count: int = 7, rationales: int = 3, sampled: bool = True) -> PolicyShare:
    """Rollouts whose every value tells which one it belongs to; token 0 is among the ids, and is also what pads."""
    responses = [[row, *range(LENGTHS[row] - 1)] for row in range(count)]
    return PolicyShare(
        prompts=[[200 + row] * (row + 1) for row in range(count)],
        responses=responses,
        advantages=torch.arange(count) - 2.5,
        ref_log_probs=[floats(row, len(r)) for row, r in enumerate(responses)],
        rollout_log_probs=[floats(row, len(r)) + 0.5 for row, r in enumerate(responses)] if sampled else None,
        sft_prompts=[[300 + row] for row in range(rationales)],
        sft_rationales=[[400 + row, 0] for row in range(rationales)],
        info=BatchInfo(num_tokens=27, num_sequences=count, rollout_n=2),
        sft_tokens=6,
    )


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_every_rollout_reaches_one_worker_with_what_belongs_to_it(workers: int):
    whole = make_share()
    shares = [share_of(proto) for proto in policy_proto(whole, workers).chunk(workers)]
    rows = []
    for share in shares:
        for at, response in enumerate(share.responses):
            row = response[0]
            rows.append(row)
            assert share.prompts[at] == whole.prompts[row]
            assert response == whole.responses[row]
            assert share.advantages[at] == whole.advantages[row]
            np.testing.assert_array_equal(share.ref_log_probs[at], whole.ref_log_probs[row])
            assert share.rollout_log_probs is not None
            assert whole.rollout_log_probs is not None
            np.testing.assert_array_equal(share.rollout_log_probs[at], whole.rollout_log_probs[row])
    assert sorted(rows) == list(range(7))


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_every_rationale_reaches_one_worker(workers: int):
    shares = [share_of(proto) for proto in policy_proto(make_share(), workers).chunk(workers)]
    pairs = [pair for s in shares for pair in zip(s.sft_prompts, s.sft_rationales, strict=True)]
    assert sorted(pairs) == [([300 + row], [400 + row, 0]) for row in range(3)]


def test_every_share_has_the_counts_of_the_whole_batch():
    for proto in policy_proto(make_share(), 4).chunk(4):
        share = share_of(proto)
        assert share.info == BatchInfo(num_tokens=27, num_sequences=7, rollout_n=2)
        assert share.sft_tokens == 6


def test_without_the_engines_log_probabilities_and_rationales_there_are_none_in_the_shares():
    for proto in policy_proto(make_share(rationales=0, sampled=False), 2).chunk(2):
        share = share_of(proto)
        assert share.rollout_log_probs is None
        assert share.sft_prompts == share.sft_rationales == []


def test_workers_get_equally_many_rows_and_tokens():
    # the pairs that add up alike: 10 + 1 and 9 + 2
    parts = balanced_rows([10, 9, 2, 1], 2)
    assert sorted(sorted(part) for part in parts) == [[0, 3], [1, 2]]


def test_an_uneven_batch_is_balanced_far_better_than_in_its_order():
    lengths = sorted(np.random.default_rng(0).integers(60, 1216, 896).tolist())
    totals = [sum(lengths[row] for row in part) for part in balanced_rows(lengths, 8)]
    assert max(totals) / min(totals) < 1.01
    in_order = [sum(lengths[i * 112 : (i + 1) * 112]) for i in range(8)]
    assert max(in_order) / min(in_order) > 5


def test_what_does_not_divide_is_padded():
    parts = balanced_rows([5, 4, 3], 2)
    assert [len(part) for part in parts] == [2, 2]
    assert sorted(row for part in parts for row in part) == [-1, 0, 1, 2]


@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_answers_come_back_in_the_order_of_the_questions(workers: int):
    prompts = [[9] * (1 + row % 3) for row in range(7)]
    responses = [[row] * length for row, length in enumerate(LENGTHS)]
    proto, rows = sequence_proto(prompts, responses, workers)
    answers = []
    for number, part in enumerate(proto.chunk(workers)):
        own_prompts, own_responses = sequences_of(part)
        assert [len(p) for p in own_prompts] == [1 + r[0] % 3 for r in own_responses]
        answers.append(scores_proto([floats(r[0], len(r)) for r in own_responses], part, 1.0 + number))
    scores, seconds = scores_in_order(answers, rows, LENGTHS)
    for row, length in enumerate(LENGTHS):
        np.testing.assert_array_equal(scores[row], floats(row, length))
    assert seconds == workers  # the slowest worker's


def test_the_drivers_side_imports_verl_only_when_a_group_starts():
    code = "import sys, trainers.grpo, actors.groups; sys.exit('verl' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
