"""Stage II: retrieval-guided GRPO (eqs. 8-15), the driver of the five roles.

``python -m trainers.grpo CONFIG [key=value ...]`` runs it, also as a Ray job; ``skillreason train grpo`` is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayActorError, RayTaskError
from tqdm import tqdm

from actors.launch import RoleError, Roles, generate, last_line, launch_roles, push_weights
from actors.policy import PolicyBatch
from actors.reward import RewardRequest, RewardResult
from cluster.placement import ray_session
from configs import GrpoConfig, to_yaml
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage2Record, read_stage2
from evaluation.plots import plot_curves
from models.generation import Rollout
from models.tokenization import ModelTokenizer
from models.views import View
from retrieval.retriever import write_fusion_weight
from rewards import load_terms
from trainers.batches import BatchSchedule
from trainers.interrupt import Interrupted, StopRequest
from trainers.main import main
from trainers.run_folder import RunFolder, check_input_files, run_identity, use_absolute_paths
from trainers.tracking import Tracker, read_metrics
from trainers.validation import HeldOutSet, build_heldout_set, split_heldout

logger = logging.getLogger(__name__)


def train_grpo(config: GrpoConfig) -> RunFolder:
    """Run Stage II to its end, or go on from the newest checkpoint of the run's folder.

    Runs on the cluster it is connected to, that of ``RAY_ADDRESS`` (a Ray job's), or one of its own on this machine.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        RewardError: a reward term gave something that cannot be trained on; the last checkpoint stands.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    run = RunFolder.of(config.run)
    use_absolute_paths(config)
    exclusions = ExclusionGraph.read(config.data.exclusions_file) if config.data.exclusions_file else None
    training, heldout = split_heldout(read_stage2(config.data.train_file), config.data.heldout_fraction)
    schedule = BatchSchedule.of(config, training, exclusions)
    tokenizer = ModelTokenizer.load(config.model.path)
    load_terms(config.reward.terms)  # the reward actor does the same; here a wrong import path is refused at once
    validation = build_heldout_set(heldout, training, config.validation)
    identity = run_identity(config, training)
    checkpoint = run.checkpoint_to_resume(identity)
    run.write_config(config)

    with ray_session(), contextlib.ExitStack() as stack:
        try:
            roles = launch_roles(config, exclusions.adjacency if exclusions else None)
            stack.callback(roles.stop)
            roles.wait_ready()
            loop = GrpoLoop(config, run, roles, tokenizer, schedule, validation, identity)
            loop.run_to_end(checkpoint)
        except RayTaskError as error:
            raise _cause(error) from error
        except RayActorError as error:
            raise RoleError(f"a role's process died: {last_line(error)}; the last checkpoint stands") from error
    return run


@dataclass
class GrpoLoop:
    """The step of E.3, and what happens between steps."""

    config: GrpoConfig
    run: RunFolder
    roles: Roles
    tokenizer: ModelTokenizer
    schedule: BatchSchedule[Stage2Record]
    validation: HeldOutSet | None
    identity: dict[str, Any]

    def run_to_end(self, checkpoint: Any = None) -> None:
        """All updates after ``checkpoint``, then export and plots."""
        config, trainer = self.config, self.config.trainer
        progress: dict[str, Any] = {"step": 0, "wandb_run_id": "", "collisions": 0, "identity": self.identity}
        if checkpoint is not None:
            progress |= ray.get(self.roles.policy.restore.remote(str(checkpoint)))
            logger.info("resuming %s at update %d of %d", checkpoint, progress["step"], self.schedule.total)
        version, _ = push_weights(self.roles)
        tracker = Tracker(
            self.run.metrics,
            config.tracking,
            config.run.name,
            {"stage": "grpo", "yaml": to_yaml(config)},
            resume_step=progress["step"],
            run_id=progress["wandb_run_id"],
        )
        progress["wandb_run_id"] = tracker.run_id
        bar = tqdm(total=self.schedule.total, initial=progress["step"], desc="GRPO", unit="update", dynamic_ncols=True)
        with contextlib.closing(tracker), bar, StopRequest() as stop:
            for batch in self.schedule.after(progress["step"]):
                metrics = self.step(batch.records, batch.step, version)
                version, metrics["time/weight_sync"] = push_weights(self.roles)
                progress["step"] = batch.step
                progress["collisions"] += batch.collisions
                metrics["sampler/collisions"] = progress["collisions"]
                last = batch.step == self.schedule.total
                if self.validation is not None and trainer.test_freq and (last or batch.step % trainer.test_freq == 0):
                    metrics |= self._recall(self.validation)
                tracker.log(batch.step, metrics)
                bar.update()
                bar.set_postfix(reward=f"{metrics['reward/total/mean']:.3f}", kl=f"{metrics['actor/kl_loss']:.4f}")
                if last or stop.requested or (trainer.save_freq and batch.step % trainer.save_freq == 0):
                    ray.get(
                        self.roles.policy.save.remote(
                            str(self.run.checkpoints), batch.step, progress, trainer.max_ckpt_to_keep
                        )
                    )
                if stop.requested and not last:
                    raise Interrupted(
                        f"stopped at update {batch.step} of {self.schedule.total}; run it again to go on: {self.run.root}"
                    )
        self._finish()

    def step(self, records: Sequence[Stage2Record], step: int, version: int) -> dict[str, float]:
        """One update: rollouts, then rewards and reference at the same time, then the policy's update."""
        start = time.perf_counter()
        roles, data = self.roles, self.config.data
        prompts = self.tokenizer.encode_prompts([r.query for r in records], data.max_prompt_length)
        seeds = [rollout_seed(self.config.run.seed, step, r.record_id) for r in records]
        groups, rollout_seconds = generate(roles, prompts, seeds, version)

        rollouts = [rollout for group in groups for rollout in group]
        owner = [q for q, group in enumerate(groups) for _ in group]
        responses = [r.tokens for r in rollouts]
        repeated = [prompts[q] for q in owner]
        reward = roles.reward.score.remote(self._reward_request(records, rollouts, owner))
        reference = roles.reference.log_probs.remote(repeated, responses)
        scored: RewardResult = ray.get(reward)
        ref_log_probs, reference_seconds = ray.get(reference)

        sft = self.config.actor.sft_coef > 0
        batch = PolicyBatch(
            query_ids=[records[q].record_id for q in owner],
            prompts=repeated,
            responses=responses,
            rewards=scored.total,
            ref_log_probs=ref_log_probs,
            sft_prompts=prompts if sft else [],
            sft_rationales=self.tokenizer.encode_rationales(
                [r.query_capability for r in records], data.max_response_length
            )
            if sft
            else [],
        )
        actor: dict[str, float] = ray.get(roles.policy.update.remote(batch))
        limit = data.max_response_length
        return {
            **scored.metrics,
            **actor,
            "response/clip_ratio": float(
                np.mean([len(r) >= limit and r[-1] not in self.tokenizer.stop_token_ids for r in responses])
            ),
            "time/rollout": rollout_seconds,
            "time/reference": reference_seconds,
            "time/step": time.perf_counter() - start,
        }

    def _reward_request(
        self, records: Sequence[Stage2Record], rollouts: Sequence[Rollout], owner: list[int]
    ) -> RewardRequest:
        documents = {r.positive_id: r.positive for r in records}
        for record in records:
            documents.update(zip(record.negative_ids, record.negatives, strict=True))
        return RewardRequest(
            query_ids=[r.record_id for r in records],
            queries=[r.query for r in records],
            positive_ids=[r.positive_id for r in records],
            negative_ids=[list(r.negative_ids) for r in records],
            documents=documents,
            rationales=self.tokenizer.decode([r.tokens for r in rollouts]),
            lengths=[len(r.tokens) for r in rollouts],
            group=owner,
        )

    def _encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        return ray.get(self.roles.policy.encode.remote(list(views), max_length))

    def _recall(self, validation: HeldOutSet) -> dict[str, float]:
        data = self.config.data
        return validation.recall(self._encode, data.max_query_length, data.document_max_length)

    def _finish(self) -> None:
        if self.config.trainer.export:
            length = self.config.trainer.export_max_length
            ray.get(self.roles.policy.export.remote(str(self.run.export), str(self.run.causal_lm), length))
            if self.validation is not None:
                weight = self.validation.fusion_weight(self._encode, length)
                count = len(self.validation.queries)
                write_fusion_weight(self.run.export, weight, chosen_on=f"{count} held-out training requests")
        rows = read_metrics(self.run.metrics)
        terms = [f"reward/{name}/mean" for name in ("total", *self.config.reward.terms)]
        plot_curves(rows, terms, self.run.plots / "rewards.png", "Stage II rewards")
        keys = ["actor/pg_loss", "actor/kl_loss", "actor/entropy", "response/length_mean", "val/recall@10"]
        plot_curves(rows, keys, self.run.plots / "policy.png", "Stage II policy")


def _cause(error: BaseException) -> BaseException:
    """What a role raised: Ray's own exception has a remote traceback, one inside another, where the message should be."""
    while isinstance(error, RayTaskError):
        cause = getattr(error, "cause", None)
        if not isinstance(cause, BaseException):
            break
        error = cause
    return error


def rollout_seed(seed: int, step: int, record_id: str) -> int:
    """The seed of one group's samples: the same in a resumed run, whatever worker draws them."""
    digest = hashlib.blake2b(f"{seed}:{step}:{record_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & (2**63 - 1)


if __name__ == "__main__":
    main(GrpoConfig, train_grpo)
