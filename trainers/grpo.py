"""Stage II: retrieval-guided GRPO (eqs. 8-15), the driver of the five roles.

``python -m trainers.grpo CONFIG [key=value ...]`` runs it, also as a Ray job; ``skillreason train grpo`` is the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from ray.exceptions import RayActorError, RayTaskError
from tqdm import tqdm

from actors.groups import GroupDied
from actors.launch import Roles, launch_roles
from actors.members import RoleError
from actors.policy_batch import PolicyBatch
from actors.reward import RewardRequest, RewardResult
from cluster.errors import cause, last_line
from cluster.placement import ray_session
from configs import ConfigError, GrpoConfig, to_yaml
from data_pipeline.exclusions import ExclusionGraph
from data_pipeline.records import Stage2Record, format_of_records, read_stage2
from evaluation.plots import plot_curves
from models.generation import Rollout
from models.tokenization import ModelTokenizer
from models.views import View
from objectives.checkpoint import read_checkpoint_state
from retrieval.retriever import write_fusion_weight
from rewards import load_terms
from trainers.batches import BatchSchedule
from trainers.events import EventLog
from trainers.interrupt import Interrupted, StopRequest
from trainers.lengths import check_lengths
from trainers.main import main
from trainers.recovery import Account, PolicyRenewed, Recovery, newest_checkpoint
from trainers.run_folder import RunFolder, check_input_files, run_identity, with_absolute_paths
from trainers.saving import Saving
from trainers.session import progress_bar
from trainers.timeline import Timeline
from trainers.tracking import Tracker, read_metrics
from trainers.validation import HeldOutSet, build_heldout_set, split_heldout

logger = logging.getLogger(__name__)


def train_grpo(config: GrpoConfig) -> RunFolder:
    """Run Stage II to its end, or go on from the newest checkpoint of the run's folder.

    Runs on the cluster it is connected to, that of ``RAY_ADDRESS`` (a Ray job's), or one of its own on this machine.

    Raises:
        ConfigError, RecordError, BackboneError, CheckpointError: before the first update, naming what is wrong.
        RewardError: a reward term gave something that cannot be trained on; the last checkpoint stands.
        RoleError: more processes were lost than ``trainer.max_restarts`` allows, or there was no room for new ones.
        Interrupted: after Ctrl-C, with the checkpoint of the last complete update written.
    """
    check_input_files(config)
    run = RunFolder.of(config.run)
    exclusions = ExclusionGraph.read(config.data.exclusions_file) if config.data.exclusions_file else None
    training, heldout = split_heldout(read_stage2(config.data.train_file), config.data.heldout_fraction)
    schedule = BatchSchedule.of(config, training, exclusions)
    tokenizer = ModelTokenizer.load(config.model.path)
    check_lengths(config, tokenizer)
    if (found := format_of_records(training)) != tokenizer.document_format:
        raise ConfigError(
            f"data.train_file {config.data.train_file} has documents in the format {found}; model.path {config.model.path} was "
            f"trained on {tokenizer.document_format}: expected the same"
        )
    load_terms(config.reward.terms)  # the reward actor does the same; here a wrong import path is refused at once
    validation = build_heldout_set(heldout, training, config.validation)
    identity = run_identity(config, training)

    with run.lock(), ray_session() as may_grow, contextlib.ExitStack() as stack:
        run.checkpoint_to_resume(identity)
        run.write_config(config)
        account = Account(EventLog(run.events))
        try:
            adjacency = exclusions.adjacency if exclusions else None
            roles = launch_roles(with_absolute_paths(config), account.note, adjacency, may_grow)
            stack.callback(roles.stop)
            loop = GrpoLoop(config, run, roles, tokenizer, schedule, validation, identity, account)
            stack.callback(loop.scoring.shutdown, wait=False)
            loop.run_to_end()
        except RayTaskError as error:
            raise cause(error) from error
        except RayActorError as error:
            raise RoleError(f"a role's process died: {last_line(error)}; the last checkpoint stands") from error
    return run


@dataclass
class GrpoLoop:
    """The step of E.3, what happens between steps, and how a run goes on after a loss."""

    config: GrpoConfig
    run: RunFolder
    roles: Roles
    tokenizer: ModelTokenizer
    schedule: BatchSchedule[Stage2Record]
    validation: HeldOutSet | None
    identity: dict[str, Any]
    account: Account
    scoring: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "reward"))

    def __post_init__(self) -> None:
        self.timeline = Timeline(self.run.timeline)
        self.saved = 0  # update of the newest checkpoint
        self.recovery = Recovery(self.roles, self.account, self.config.trainer.max_restarts)
        self.saving = Saving(self.config.trainer.save_freq, lambda why: self.account.note("save_failed", why))

    def run_to_end(self) -> None:
        """All updates after the newest checkpoint, then export and plots."""
        checkpoint = self.run.latest_checkpoint()
        done: dict[str, Any] = read_checkpoint_state(checkpoint)["progress"] if checkpoint else {"step": 0}
        self.saved = done["step"]
        tracker = Tracker(
            self.run.metrics,
            self.config.tracking,
            self.config.run.name,
            {"stage": "grpo", "yaml": to_yaml(self.config)},
            resume_step=done["step"],
            run_id=done.get("wandb_run_id", ""),
        )
        bar = progress_bar("GRPO", self.schedule.total, done["step"])
        with contextlib.closing(tracker), bar, StopRequest() as stop:
            while True:
                try:
                    self.roles.wait_ready()
                    self._updates(self._rewind(tracker, bar), tracker, bar, stop)
                    return self._finish()
                except GroupDied as died:
                    self.recovery.restart(died)
                except PolicyRenewed:
                    pass

    def _updates(self, progress: dict[str, Any], tracker: Tracker, bar: tqdm, stop: StopRequest) -> None:
        trainer = self.config.trainer
        for batch in self.schedule.after(progress["step"]):
            metrics = self.step(batch.records, batch.step)
            progress["step"] = batch.step
            progress["collisions"] += batch.collisions
            metrics["sampler/collisions"] = progress["collisions"]
            last = batch.step == self.schedule.total
            if self.validation is not None and trainer.test_freq and (last or batch.step % trainer.test_freq == 0):
                with self.timeline.span("validation"):
                    metrics |= self._recall(self.validation)
            tracker.log(batch.step, {**metrics, **self.timeline.curves(), **self._pool_curves()})
            bar.update()
            bar.set_postfix(reward=f"{metrics['reward/total/mean']:.3f}", kl=f"{metrics['actor/kl_loss']:.4f}")
            stopped = stop.requested
            if last or stopped or self.saving.due(batch.step):
                with self.timeline.span("save"):
                    where = (self.run.checkpoints, batch.step, progress, trainer.max_ckpt_to_keep)
                    if self.saving.attempt(partial(self.roles.policy.save, *where), must=last or stopped):
                        self.saved = batch.step
            self.timeline.end()
            if stopped and not last:
                raise Interrupted(
                    f"stopped at update {batch.step} of {self.schedule.total}; run it again to go on: {self.run.root}"
                )

    def step(self, records: Sequence[Stage2Record], step: int) -> dict[str, float]:
        """One update: rollouts, then rewards and reference at the same time, then the policy's update and its new weights."""
        roles, data, span = self.roles, self.config.data, self.timeline.span
        self.timeline.begin(step)
        prompts = self.tokenizer.encode_prompts([r.query for r in records], data.max_prompt_length)
        seeds = [rollout_seed(self.config.run.seed, step, r.record_id) for r in records]
        with span("rollout"):
            groups = roles.generate(prompts, seeds)

        rollouts = [rollout for group in groups for rollout in group]
        owner = [q for q, group in enumerate(groups) for _ in group]
        responses, repeated = [r.tokens for r in rollouts], [prompts[q] for q in owner]
        scoring = self.scoring.submit(self._score, self._reward_request(records, rollouts, owner))
        with span("reference"):
            ref_log_probs = self._reference_log_probs(repeated, responses)
        scored = scoring.result()

        sft = self.config.actor.sft_coef > 0
        rationales = [r.query_capability for r in records] if sft else []
        batch = PolicyBatch(
            query_ids=[records[q].record_id for q in owner],
            prompts=repeated,
            responses=responses,
            rewards=scored.total,
            ref_log_probs=ref_log_probs,
            rollout_log_probs=[np.asarray(r.log_probs, dtype=np.float32) for r in rollouts],
            sft_prompts=prompts if sft else [],
            sft_rationales=self.tokenizer.encode_rationales(rationales, data.max_response_length),
        )
        with span("update"):
            actor = roles.policy.update(batch)
        with span("weight_sync"):
            roles.push_weights()
        cut = [len(r) >= data.max_response_length and r[-1] not in self.tokenizer.stop_token_ids for r in responses]
        return {**scored.metrics, **actor, "response/clip_ratio": float(np.mean(cut))}

    def _score(self, request: RewardRequest) -> RewardResult:
        with self.timeline.span("reward"):
            return self.roles.reward.score(request)

    def _reference_log_probs(self, prompts: list[list[int]], responses: list[list[int]]) -> list[np.ndarray]:
        """The reference never changes: when it is lost, the same step goes on with a new one."""
        while True:
            try:
                return self.roles.reference.log_probs(prompts, responses).result()[0]
            except GroupDied as died:
                self.recovery.restart(died)

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

    def _rewind(self, tracker: Tracker, bar: tqdm) -> dict[str, Any]:
        """Put the newest checkpoint into the policy, or nothing where there is none, and everything else back to its update."""
        progress: dict[str, Any] = {"step": 0, "collisions": 0, "identity": self.identity}
        if checkpoint := newest_checkpoint(self.run, self.saved):
            progress |= self.roles.policy.restore(checkpoint)
            logger.info("going on from %s, update %d of %d", checkpoint, progress["step"], self.schedule.total)
        progress["wandb_run_id"] = tracker.run_id
        self.roles.push_weights()
        lost, step = bar.n - progress["step"], progress["step"]
        tracker.rewind(step)
        self.timeline.rewind(step)
        bar.update(step - bar.n)
        self.recovery.policy_is_back(step, lost)
        return progress

    def _pool_curves(self) -> dict[str, float]:
        pools = (self.roles.rollouts, self.roles.retrievers)
        return {f"pool/{pool.name}_members": float(pool.size()) for pool in pools} | self.account.curves()

    # -- what is measured and left ----------------------------------------------------------------------------------------

    def _recall(self, validation: HeldOutSet) -> dict[str, float]:
        data = self.config.data
        return validation.recall(self._encode, data.max_query_length, data.document_max_length)

    def _encode(self, views: Sequence[View], max_length: int) -> np.ndarray:
        return self.roles.policy.encode(views, max_length)

    def _finish(self) -> None:
        if self.config.trainer.export:
            length = self.config.trainer.export_max_length
            self.roles.policy.export(str(self.run.export), str(self.run.causal_lm), length)
            if self.validation is not None:
                weight = self.validation.fusion_weight(self._encode, length)
                count = len(self.validation.queries)
                write_fusion_weight(self.run.export, weight, chosen_on=f"{count} held-out training requests")
        rows = read_metrics(self.run.metrics)
        terms = [f"reward/{name}/mean" for name in ("total", *self.config.reward.terms)]
        plot_curves(rows, terms, self.run.plots / "rewards.png", "Stage II rewards")
        keys = ["actor/pg_loss", "actor/kl_loss", "actor/entropy", "response/length_mean", "val/recall@10"]
        plot_curves(rows, keys, self.run.plots / "policy.png", "Stage II policy")
        self.timeline.plot(self.run.plots / "timeline.png")


def rollout_seed(seed: int, step: int, record_id: str) -> int:
    """The seed of one group's samples: the same in a resumed run, whatever worker draws them."""
    digest = hashlib.blake2b(f"{seed}:{step}:{record_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") & (2**63 - 1)


if __name__ == "__main__":
    main(GrpoConfig, train_grpo)
