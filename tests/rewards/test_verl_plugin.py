"""The reward manager in verl's hands: its loader, its reward workers, its agent loop's rows, and the documented command."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from actors.reward import EmbeddedScorer, RequestEmbedder, RewardRequest
from configs import GrpoConfig, load_config
from configs.schema import RewardConfig, TermConfig
from data_pipeline.records import Stage2Record
from data_pipeline.verl_dataset import CHAT_TEMPLATE, verl_row, write_verl_rows
from models.backbone import Backbone
from models.tokenization import ModelTokenizer
from models.views import View
from rewards import RewardError
from rewards.verl_config import read_reward_config

THREE_LINES = [
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://rewards.verl_plugin",
    "reward.reward_manager.name=RetrievalRewardManager",
]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "verl.md"
TERMS = {name: TermConfig() for name in ("margin", "gain", "length")}
RECORDS = [
    Stage2Record(
        record_id=f"r{i}",
        query=query,
        query_capability="The user needs skills for charts.",
        positive_id=f"lib/{i}",
        positive=f"skill {i} | handles {query} | steps of {i}",
        negative_ids=tuple(f"lib/{i}-{k}" for k in range(4)),
        negatives=tuple(f"other {i}-{k} | something else | body {k}" for k in range(4)),
        category="lib",
        original_query=query,
    )
    for i, query in enumerate(["draw last month's chart", "fill the form", "find the slow query", "write the note"])
]
RATIONALES = ["The user needs skills for charts.", " forms\n", "", "SQL, indexes and other things of that sort " * 30]


def verl_config(folder: Path | str, *overrides: str) -> Any:
    """verl's whole configuration, composed as its ``main_ppo`` does it."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"actor_rollout_ref.model.path={folder}", *THREE_LINES, *overrides])


@dataclass(frozen=True)
class Rollouts:
    """Each record with four rationales: token ids, and what our own scorer gives for each record's own pool."""

    prompts: list[list[int]]
    responses: list[list[int]]
    rows: list[dict[str, Any]]
    totals: list[float]
    terms: dict[str, list[float]]

    def batch(self) -> Any:
        """One padded DataProto: prompts padded on the left, responses on the right, with a token that is no special one."""
        from tensordict import TensorDict
        from verl import DataProto

        width, room = max(map(len, self.prompts)), max(map(len, self.responses))
        prompts, responses, mask = [], [], []
        for p, r in zip(self.prompts, self.responses, strict=True):
            prompts.append([5] * (width - len(p)) + p)
            responses.append(r + [5] * (room - len(r)))
            mask.append([0] * (width - len(p)) + [1] * (len(p) + len(r)) + [0] * (room - len(r)))
        tensors = {"prompts": prompts, "responses": responses, "attention_mask": mask}
        fields = ("data_source", "reward_model", "extra_info")
        return DataProto(
            batch=TensorDict({k: torch.tensor(v) for k, v in tensors.items()}, batch_size=len(prompts)),
            non_tensor_batch={f: np.array([row[f] for row in self.rows], dtype=object) for f in fields},
        )


@pytest.fixture(scope="module")
def rollouts(tiny_folder: Path) -> Rollouts:
    backbone = Backbone.load(tiny_folder)
    tokenizer = backbone.tokenizer

    def encode(views: list[View], max_length: int) -> np.ndarray:
        return backbone.encode(tokenizer.encode_views(views, max_length), 16384).numpy()

    responses = tokenizer.encode_rationales(RATIONALES, 200)
    prompts = tokenizer.encode_prompts([r.query for r in RECORDS], 512)
    embedder = RequestEmbedder(encode, max_query_length=2048, document_max_length=2048)
    scorer = EmbeddedScorer(RewardConfig(terms=TERMS))
    totals: list[float] = []
    terms: dict[str, list[float]] = {name: [] for name in TERMS}
    for record in RECORDS:
        request = RewardRequest(
            query_ids=[record.record_id],
            queries=[record.query],
            positive_ids=[record.positive_id],
            negative_ids=[list(record.negative_ids)],
            documents={record.positive_id: record.positive}
            | dict(zip(record.negative_ids, record.negatives, strict=True)),
            rationales=tokenizer.decode(responses),
            lengths=[len(r) for r in responses],
            group=[0] * len(responses),
        )
        result = scorer.score_embedded(request, embedder.embed(request))
        totals += result.total.tolist()
        for name in TERMS:
            terms[name] += result.terms[name].tolist()
    rows = [verl_row(record, i, tokenizer.prompt_style) for i, record in enumerate(RECORDS) for _ in RATIONALES]
    return Rollouts([p for p in prompts for _ in RATIONALES], responses * len(RECORDS), rows, totals, terms)


# -- the configuration ---------------------------------------------------------------------------------------------------


def documented_overrides() -> list[str]:
    command = re.search(r"python -m verl\.trainer\.main_ppo(.*?)```", DOCS.read_text(), re.DOTALL)
    assert command is not None
    return shlex.split(command[1].replace("\\\n", " ").replace("$PWD", "/data"))


def test_verl_s_loader_finds_the_manager_by_the_three_documented_lines():
    from verl.trainer.ppo.reward import resolve_reward_manager_cls

    assert documented_overrides()[:3] == THREE_LINES
    assert resolve_reward_manager_cls(verl_config("x")).__name__ == "RetrievalRewardManager"


def test_the_documented_command_is_valid_and_has_the_paper_s_values(tiny_folder: Path):
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    config = verl_config(tiny_folder, *[o for o in documented_overrides() if "model.path" not in o])
    assert need_reference_policy(config)
    assert not need_critic(config)
    validate_config(config, use_reference_policy=True, use_critic=False)
    assert read_reward_config(config).gpus == 1
    assert config.actor_rollout_ref.model.custom_chat_template == CHAT_TEMPLATE
    ours = load_config(GrpoConfig, "grpo_0.6b")
    actor, rollout, data = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.data
    assert actor.ppo_mini_batch_size == data.train_batch_size  # one update a batch
    theirs = [
        (data.train_batch_size, ours.data.train_batch_size),
        (data.max_prompt_length, ours.data.max_prompt_length),
        (data.max_response_length, ours.data.max_response_length),
        (rollout.n, ours.rollout.n),
        (rollout.temperature, ours.rollout.temperature),
        (rollout.top_p, ours.rollout.top_p),
        (actor.optim.lr, ours.actor.optim.lr),
        (list(actor.optim.betas), ours.actor.optim.betas),
        (actor.optim.weight_decay, ours.actor.optim.weight_decay),
        (actor.grad_clip, ours.actor.optim.clip_grad),
        (actor.optim.clip_grad, ours.actor.optim.clip_grad),
        (actor.clip_ratio, ours.actor.clip_ratio),
        (actor.clip_ratio_c, ours.actor.clip_ratio_c),
        (actor.kl_loss_coef, ours.actor.kl_loss_coef),
        (actor.kl_loss_type, ours.actor.kl_loss_type),
        (actor.loss_agg_mode, ours.actor.loss_agg_mode),
        (actor.ppo_epochs, ours.actor.ppo_epochs),
        (actor.ppo_max_token_len_per_gpu, ours.actor.ppo_max_token_len),
        (config.trainer.total_epochs, ours.trainer.total_epochs),
    ]
    assert [a for a, _ in theirs] == [b for _, b in theirs]


def test_the_documented_further_keys_are_ours():
    more = re.search(r"hence the `\+` of hydra:\n\n```bash\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert more is not None
    settings = read_reward_config(verl_config("x", *shlex.split(more[1].replace("\\\n", " ").replace("$PWD", "/data"))))
    assert settings.pool_file == "/data/data/pool.jsonl"
    assert settings.terms == {"margin": TermConfig(), "mine": TermConfig(0.5, "my_rewards:lead")}


def test_what_verl_saves_is_a_backbone_of_ours(tiny_folder: Path, tmp_path: Path):
    """verl's checkpoints hold its model config and tokenizer, saved as here; its merger adds the weights."""
    from safetensors.torch import load_file, save_file
    from verl.workers.config import HFModelConfig

    model = HFModelConfig(path=str(tiny_folder), custom_chat_template=CHAT_TEMPLATE)
    model.hf_config.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    save_file(load_file(tiny_folder / "model.safetensors"), tmp_path / "model.safetensors", {"format": "pt"})
    saved, original = ModelTokenizer.load(tmp_path), ModelTokenizer.load(tiny_folder)
    assert saved.pooling_token_id == original.pooling_token_id
    assert saved.prompt_style == original.prompt_style
    assert saved.stop_token_ids == original.stop_token_ids
    views = [View("", "a document"), View("Instruct: ", "a request", "\nlabel:", "analysis", "\nanchor")]
    assert saved.encode_views(views, 64) == original.encode_views(views, 64)
    assert Backbone.load(tmp_path).state().keys() == Backbone.load(tiny_folder).state().keys()


def test_the_terms_become_validation_curves_of_these_names():
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    info = {"reward": [1.5, 0.5], "reward/margin": [0.9, 0.1], "retrieval/margin": [0.2, 0.0]}
    curves = process_validation_metrics(["skillreason"] * 2, ["u1", "u2"], info)["skillreason"]
    assert {name: values["mean@1"] for name, values in curves.items()} == {
        "reward": 1.0,
        "reward/margin": 0.5,
        "retrieval/margin": 0.1,
    }


# -- single rows ---------------------------------------------------------------------------------------------------------


def test_a_row_is_read_without_padding(tiny_folder: Path, rollouts: Rollouts):
    from rewards.verl_plugin import read_row

    tokenizer, batch = ModelTokenizer.load(tiny_folder), rollouts.batch()
    rows = [read_row(batch[i : i + 1], tokenizer.hf) for i in range(len(batch))]
    assert [row.length for row in rows] == [len(r) for r in rollouts.responses]
    assert [row.rationale for row in rows] == tokenizer.decode(rollouts.responses)
    assert rows[0].documents == {"lib/0": RECORDS[0].positive} | dict(
        zip(RECORDS[0].negative_ids, RECORDS[0].negatives, strict=True)
    )


def test_a_response_without_a_token_is_an_empty_rationale(tiny_folder: Path, rollouts: Rollouts):
    from tensordict import TensorDict
    from verl import DataProto

    from rewards.verl_plugin import read_row

    prompt = torch.tensor([rollouts.prompts[0]])
    tensors = {"prompts": prompt, "responses": prompt[:, :0], "attention_mask": torch.ones_like(prompt)}
    fields = {name: np.array([rollouts.rows[0][name]]) for name in ("reward_model", "extra_info")}
    data = DataProto(batch=TensorDict(tensors, batch_size=1), non_tensor_batch=fields)
    row = read_row(data, ModelTokenizer.load(tiny_folder).hf)
    assert (row.rationale, row.length) == ("", 0)


@pytest.mark.parametrize(
    "column, changes, problem",
    [
        ("extra_info", None, r"extra_info is missing; .*`skillreason verl-dataset`"),
        ("reward_model", None, "reward_model is missing"),
        ("reward_model", {"ground_truth": None}, r"row 'r0': reward_model\.ground_truth is missing"),
        (
            "reward_model",
            {"ground_truth": 3},
            r"row 'r0': reward_model\.ground_truth is 3; expected a non-empty string",
        ),
        ("extra_info", {"record_id": None}, r"row '\?': extra_info\.record_id is missing"),
        ("extra_info", {"query": " "}, r"row 'r0': extra_info\.query is ' '; expected a non-empty string"),
        ("extra_info", {"positive": None}, r"row 'r0': extra_info\.positive is missing"),
        ("extra_info", {"negatives": None}, r"row 'r0': extra_info\.negatives is missing; expected a non-empty list"),
        ("extra_info", {"negatives": ["a"]}, r"row 'r0': 1 extra_info\.negatives for 4 negative_ids"),
        ("extra_info", {"negatives": ["a", "b", "c", 4]}, r"row 'r0': extra_info\.negatives\[3\] is 4"),
        ("extra_info", {"negative_ids": "lib/b"}, r"row 'r0': extra_info\.negative_ids is 'lib/b'"),
        ("extra_info", {"negative_ids": ["x", "lib/0", "y", "z"]}, r"row 'r0': the positive 'lib/0' is among its own"),
    ],
)
def test_a_row_without_what_the_reward_needs_is_refused_by_field(
    column: str, changes: dict[str, Any] | None, problem: str, tiny_folder: Path, rollouts: Rollouts
):
    from rewards.verl_plugin import read_row

    data = rollouts.batch()[:1]
    if changes is None:
        del data.non_tensor_batch[column]
    else:
        changed = {k: v for k, v in (rollouts.rows[0][column] | changes).items() if v is not None}
        data.non_tensor_batch[column] = np.array([changed])
    with pytest.raises(RewardError, match=problem):
        read_row(data, ModelTokenizer.load(tiny_folder).hf)


# -- with Ray ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reward_loop(ray_cluster: None, tiny_folder: Path) -> Iterator[Any]:
    """verl's own manager of two reward worker processes."""
    import ray
    from verl.experimental.reward_loop import RewardLoopManager

    config = verl_config(tiny_folder, "reward.num_workers=2", "+reward.reward_kwargs.dtype=float32")
    loop = RewardLoopManager(config)
    yield loop
    # first, for it ends with the worker that started it
    ray.kill(ray.get_actor(read_reward_config(config).actor_name))
    for worker in loop.reward_loop_workers:
        ray.kill(worker)


@pytest.mark.ray
def test_verl_s_reward_workers_give_our_scorer_s_rewards(reward_loop: Any, rollouts: Rollouts):
    output = reward_loop.compute_rm_score(rollouts.batch())
    scores = output.batch["rm_scores"]
    last = [len(r) - 1 for r in rollouts.responses]
    assert scores[range(len(last)), last].tolist() == pytest.approx(rollouts.totals, abs=2e-4)
    assert torch.count_nonzero(scores).item() == torch.count_nonzero(scores[range(len(last)), last]).item()
    for name, values in rollouts.terms.items():
        assert output.non_tensor_batch[f"reward/{name}"].tolist() == pytest.approx(values, abs=1e-4), name


@pytest.mark.ray
def test_all_workers_share_one_actor_that_encodes_their_rows_together(reward_loop: Any, rollouts: Rollouts):
    import ray

    actor: Any = ray.get_actor(read_reward_config(reward_loop.config).actor_name)
    before: Any = ray.get(actor.counts.remote())
    reward_loop.compute_rm_score(rollouts.batch())
    after: Any = ray.get(actor.counts.remote())
    pids = ray.get([w.__ray_call__.remote(lambda self: os.getpid()) for w in reward_loop.reward_loop_workers])
    assert len(set(pids)) == 2
    assert [name for name in ray.util.list_named_actors() if name.startswith("skillreason_reward")] == [
        read_reward_config(reward_loop.config).actor_name
    ]
    assert after["rollouts"] - before["rollouts"] == 16  # those of both workers
    assert after["calls"] - before["calls"] < 12
    assert after["documents"] == 4 * 5


@pytest.mark.ray
def test_rows_as_verl_s_agent_loop_sends_them_get_the_same_rewards(
    reward_loop: Any, rollouts: Rollouts, tiny_folder: Path, tmp_path: Path
):
    """The default trainer scores each rollout when it is complete: unpadded, its columns packed by the agent loop."""
    from omegaconf import OmegaConf
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput, AgentLoopWorker
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.config import HFModelConfig

    write_verl_rows(tmp_path / "train.parquet", RECORDS, ModelTokenizer.load(tiny_folder).prompt_style)
    tokenizer = HFModelConfig(path=str(tiny_folder), custom_chat_template=CHAT_TEMPLATE).tokenizer
    options = OmegaConf.create({"cache_dir": str(tmp_path), "filter_overlong_prompts": False})
    dataset = RLHFDataset(str(tmp_path / "train.parquet"), tokenizer, options)
    loop = SimpleNamespace(
        reward_loop_worker_handles=reward_loop.reward_loop_worker_handles,
        processor=None,
        _compute_multi_modal_inputs=lambda output, ids: {},
        _compute_position_ids=lambda ids, mask, inputs, extra: torch.arange(ids.shape[-1])[None],
        _get_mm_processor_kwargs=lambda audios: {},
    )

    async def score(index: int, prompt: list[int], response: list[int]) -> AgentLoopOutput:
        columns = {k: v for k, v in dataset[index].items() if not isinstance(v, torch.Tensor)}
        ones = [1] * len(response)
        output = AgentLoopOutput(
            prompt_ids=prompt, response_ids=response, response_mask=ones, num_turns=2, metrics=AgentLoopMetrics()
        )
        await AgentLoopWorker._compute_score(loop, [output], columns | {"uid": f"u{index}"})  # type: ignore[arg-type]
        return output

    async def score_all() -> Sequence[AgentLoopOutput]:
        pairs = enumerate(zip(rollouts.prompts, rollouts.responses, strict=True))
        return await asyncio.gather(*[score(i // len(RATIONALES), p, r) for i, (p, r) in pairs])

    outputs = asyncio.run(score_all())
    assert [o.reward_score for o in outputs] == pytest.approx(rollouts.totals, abs=2e-4)
    margins = [o.extra_fields["reward_extra_info"]["reward/margin"] for o in outputs]
    assert margins == pytest.approx(rollouts.terms["margin"], abs=1e-4)


@pytest.mark.ray
def test_a_term_that_fails_reaches_verl_as_our_named_error(ray_cluster: None, rollouts: Rollouts, tiny_folder: Path):
    import ray

    term = "+reward.reward_kwargs.terms.broken.function=math:fsum"  # a RewardBatch is no list of numbers
    config = verl_config(tiny_folder, "+reward.reward_kwargs.dtype=float32", term)
    manager = in_this_process(config, tiny_folder)
    with pytest.raises(RewardError, match=r"^reward term 'broken' raised TypeError"):
        asyncio.run(manager.run_single(rollouts.batch()[:1]))
    ray.kill(manager._actor)


@pytest.mark.ray
def test_a_killed_actor_is_started_again_and_scores_the_rows_in_flight(
    ray_cluster: None, rollouts: Rollouts, tiny_folder: Path
):
    import ray

    options = ["+reward.reward_kwargs.dtype=float32", "+reward.reward_kwargs.max_restarts=1"]
    manager = in_this_process(verl_config(tiny_folder, *options), tiny_folder)
    batch, times = rollouts.batch(), 8

    async def score_all() -> list[float]:
        rows = [manager.run_single(batch[i : i + 1]) for _ in range(times) for i in range(len(batch))]
        return [found["reward_score"] for found in await asyncio.gather(*rows)]

    assert asyncio.run(score_all()) == pytest.approx(rollouts.totals * times, abs=2e-4)
    timer = threading.Timer(0.05, kill, [pid_of(manager)])
    timer.start()
    assert asyncio.run(score_all()) == pytest.approx(rollouts.totals * times, abs=2e-4)
    timer.join()
    counts: Any = ray.get(manager._actor.counts.remote())
    assert 0 < counts["rollouts"] <= len(batch) * times  # by the new process
    kill(pid_of(manager))
    with pytest.raises(RewardError, match=r"is gone; it is started again at most 1 times .*max_restarts"):
        asyncio.run(score_all())


@pytest.mark.ray
def test_a_retriever_that_cannot_be_loaded_is_named_at_the_start(ray_cluster: None, tiny_folder: Path):
    config = verl_config(tiny_folder, "+reward.reward_kwargs.retriever_path=/no/such/folder")
    with pytest.raises(RewardError, match=r"did not start: .*/no/such/folder: no config\.json"):
        in_this_process(config, tiny_folder)


@pytest.mark.ray
def test_resources_that_the_cluster_lacks_are_named_instead_of_waited_for(ray_cluster: None, tiny_folder: Path):
    config = verl_config(tiny_folder, "+reward.reward_kwargs.gpus=2", "+reward.reward_kwargs.wait_s=1")
    with pytest.raises(TimeoutError, match=r"not up after 1 s \(reward\.reward_kwargs\.wait_s\): it needs 2 GPUs"):
        in_this_process(config, tiny_folder)


def in_this_process(config: Any, folder: Path) -> Any:
    """The manager as verl's loader makes it in a reward worker."""
    from verl.trainer.ppo.reward import load_reward_manager

    return load_reward_manager(config, ModelTokenizer.load(folder).hf, reward_router_address=None)


def pid_of(manager: Any) -> int:
    import ray

    return ray.get(manager._actor.__ray_call__.remote(lambda self: os.getpid()))


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
