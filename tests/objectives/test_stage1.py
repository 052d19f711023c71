"""A Stage-I step: the batch that the collator makes, and eq. 7 with its gradients against a direct computation."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from configs.schema import OptimizerConfig, Stage1DataConfig, Stage1LossConfig
from models.backbone import Backbone
from objectives.engine_torch import ReplicaEngine
from objectives.stage1 import Stage1Batch, Stage1Collator, stage1_backward


@pytest.fixture
def records(record):
    return [
        record("chart", "form", "sql", weight=1.0),
        record("form", "notes", "chart", rationale="The user needs skills for filling many forms at once.", weight=0.5),
        record("sql", "notes", "plot", query="Why is my database slow? " * 3, weight=2.0),
    ]


@pytest.fixture
def batch(backbone: Backbone, data_config: Stage1DataConfig, records) -> Stage1Batch:
    return Stage1Collator(backbone, data_config, {"chart": {"plot"}})(records)


def engine_of(backbone: Backbone) -> ReplicaEngine:
    """An engine that leaves the backbone's mode as the test set it, dropout included."""
    training = backbone.training
    engine = ReplicaEngine(backbone, OptimizerConfig())
    backbone.train(training)
    return engine


def gradients(backbone: Backbone) -> dict[str, torch.Tensor]:
    out = {name: p.grad.clone() for name, p in backbone.named_parameters() if p.grad is not None}
    backbone.zero_grad(set_to_none=True)
    return out


# -- the collator -------------------------------------------------------------------------------------------------------


def test_a_document_that_occurs_twice_is_one_candidate(batch: Stage1Batch):
    assert batch.document_ids == ["chart", "form", "sql", "notes", "plot"]
    assert len(batch.documents) == 5
    assert batch.positive.tolist() == [0, 1, 2]


def test_excluded_neighbours_of_the_positive_are_masked_for_its_record_only(batch: Stage1Batch):
    assert batch.masked.tolist() == [[False, False, False, False, True], [False] * 5, [False] * 5]


def test_other_known_positives_of_the_same_request_are_masked_and_its_own_is_not(backbone, data_config, record):
    records = [record("chart", "sql", query="draw it"), record("plot", "sql", query="draw it"), record("form", "sql")]
    known = {"draw it": {"chart", "plot"}}
    batch = Stage1Collator(backbone, data_config, known_positives=known)(records)
    assert batch.document_ids == ["chart", "sql", "plot", "form"]
    assert batch.masked.tolist() == [[False, False, True, False], [True, False, False, False], [False] * 4]


def test_only_the_first_k_negatives_take_part(backbone, record):
    config = Stage1DataConfig(negatives_per_record=1)
    batch = Stage1Collator(backbone, config)([record("chart", "form", "sql"), record("notes", "plot", "sql")])
    assert batch.document_ids == ["chart", "form", "notes", "plot"]


def test_every_input_keeps_its_limit(backbone, record):
    config = Stage1DataConfig(max_length=100, document_max_length=11, lm_max_length=40, rationale_max_length=9)
    long = "form and table and chart " * 30
    batch = Stage1Collator(backbone, config)([record("form", "notes", query=long, rationale=long)])
    pool, end = backbone.tokenizer.pooling_token_id, backbone.tokenizer.eos_id
    for view in (batch.raw, batch.privileged, batch.teacher):
        assert (len(view[0]), view[0][-1]) == (100, pool)
    assert [(len(d), d[-1]) for d in batch.documents] == [(11, pool), (11, pool)]
    assert (len(batch.prompts[0]), len(batch.rationales[0]), batch.rationales[0][-1]) == (31, 9, end)


def test_documents_are_tokenized_once_per_run(backbone, data_config, record, monkeypatch):
    seen: list[str] = []
    encode = backbone.tokenizer.encode_views

    def counting(views, limit):
        seen.extend(v.text for v in views if not v.prefix)
        return encode(views, limit)

    monkeypatch.setattr(backbone.tokenizer, "encode_views", counting)
    collator = Stage1Collator(backbone, data_config)
    first = collator([record("chart", "form")])
    second = collator([record("sql", "form", "chart")])
    assert len(seen) == len(set(seen)) == 3
    assert second.documents[1:] == first.documents[::-1]


# -- eq. 7 --------------------------------------------------------------------------------------------------------------

LOSS = Stage1LossConfig(
    tau=0.3, lambda_raw=0.7, lambda_cot=1.3, lambda_kl=5.0, kl_temperature=2.0, kl_start_update=30, lambda_lm=0.2
)


def with_options(**options) -> Stage1LossConfig:
    return Stage1LossConfig(**{**vars(LOSS), **options})


def direct_eq_7(backbone: Backbone, batch: Stage1Batch, config: Stage1LossConfig, kl: bool):
    """Terms and total by the equations: one unpadded sequence at a time, everything after the transformer in float64."""

    def embed(ids: list[int]) -> torch.Tensor:
        hidden = backbone.model.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].double()
        return hidden / hidden.norm()

    documents = torch.stack([embed(d) for d in batch.documents])
    weight = batch.weights.double() / batch.weights.double().sum()

    def log_p(views: list[list[int]], docs: torch.Tensor, temperature: float) -> list[torch.Tensor]:
        return [
            torch.log_softmax(embed(view) @ docs[~out].T / temperature, dim=0)
            for view, out in zip(views, batch.masked, strict=True)
        ]

    def contrastive(views: list[list[int]]) -> torch.Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for i, row in enumerate(log_p(views, documents, config.tau)):
            kept = torch.nonzero(~batch.masked[i]).flatten().tolist()
            total = total - weight[i] * row[kept.index(int(batch.positive[i]))]
        return total

    terms = {"loss/raw": contrastive(batch.raw), "loss/cot": contrastive(batch.privileged)}
    total = config.lambda_raw * terms["loss/raw"] + config.lambda_cot * terms["loss/cot"]
    if kl:
        temperature = config.tau * config.kl_temperature
        with torch.no_grad():
            target = log_p(batch.teacher, documents.detach(), temperature)
        student = log_p(batch.raw, documents, temperature)
        divergences = torch.stack([(t.exp() * (t - s)).sum() for t, s in zip(target, student, strict=True)])
        terms["loss/kl"] = config.kl_temperature**2 * (weight * divergences).sum()
        total = total + config.lambda_kl * terms["loss/kl"]
    sums, tokens = [], 0
    for prompt, rationale in zip(batch.prompts, batch.rationales, strict=True):
        logits = backbone.model(torch.tensor([[*prompt, *rationale]])).logits[0].double()
        log_probs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        sums.append(-log_probs[range(len(rationale)), rationale].sum())
        tokens += len(rationale)
    terms["loss/lm"] = torch.stack(sums).sum() / (tokens if config.lm_reduction == "token_mean" else len(sums))
    total = total + config.lambda_lm * terms["loss/lm"]
    return {"loss/total": total, **terms}


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("options", [{}, {"lm_reduction": "sum"}, {"kl_temperature": 1.0}, {"tau": 1.0}], ids=str)
def test_terms_and_gradients_equal_the_equations(backbone: Backbone, batch: Stage1Batch, options, share: bool):
    backbone.share_prefixes = share
    config = with_options(**options)
    expected = direct_eq_7(backbone, batch, config, kl=True)
    expected["loss/total"].backward()
    expected_gradients = gradients(backbone)
    terms = stage1_backward(engine_of(backbone), batch, config, update=30)
    assert {k: terms[k] for k in expected} == pytest.approx(
        {k: v.item() for k, v in expected.items()}, rel=1e-5, abs=1e-6
    )
    torch.testing.assert_close(gradients(backbone), expected_gradients, rtol=1e-4, atol=1e-5)


def test_what_the_views_of_a_request_begin_with_is_computed_once(backbone: Backbone, batch: Stage1Batch, monkeypatch):
    tokens: list[int] = []

    def note(module, inputs, output):
        tokens.append(output.shape[0] * output.shape[1])

    backbone.model.get_input_embeddings().register_forward_hook(note)
    config = with_options(lambda_lm=0.0, micro_batch_tokens=0)
    stage1_backward(engine_of(backbone), batch, config, update=30)
    shared = tokens.copy()
    tokens.clear()
    backbone.share_prefixes = False
    stage1_backward(engine_of(backbone), batch, config, update=30)
    views = [*batch.raw, *batch.privileged, *batch.teacher, *batch.documents]
    nodes = {tuple(view[: i + 1]) for view in views for i in range(len(view))}  # of the tree of all prefixes
    assert len(shared) == 1
    assert len(nodes) <= shared[0] <= len(nodes) + 8 * len(views)  # shorter common prefixes are not shared
    assert shared[0] < 0.6 * sum(tokens)


@pytest.mark.parametrize("budget", [1, 100, 200, 400])
def test_the_gradient_cache_changes_neither_terms_nor_gradients(backbone: Backbone, batch: Stage1Batch, budget: int):
    whole = stage1_backward(engine_of(backbone), batch, with_options(gradient_cache=False, micro_batch_tokens=0), 30)
    expected = gradients(backbone)
    cached = stage1_backward(
        engine_of(backbone), batch, with_options(gradient_cache=True, micro_batch_tokens=budget), 30
    )
    assert cached == pytest.approx(whole, rel=1e-5)
    torch.testing.assert_close(gradients(backbone), expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def dropping_backbone(tiny_folder: Path, tmp_path: Path) -> Backbone:
    folder = shutil.copytree(tiny_folder, tmp_path / "dropout")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.3}))
    return Backbone.load(folder).train()


@pytest.mark.parametrize("budget", [100, 400])
def test_the_gradient_cache_replays_dropout(dropping_backbone: Backbone, batch: Stage1Batch, budget: int):
    def step(seed: int, cache: bool):
        torch.manual_seed(seed)
        config = with_options(gradient_cache=cache, micro_batch_tokens=budget)
        return stage1_backward(engine_of(dropping_backbone), batch, config, 30), gradients(dropping_backbone)

    terms, expected = step(1, cache=False)
    cached_terms, cached = step(1, cache=True)
    assert cached_terms == pytest.approx(terms, rel=1e-5)
    torch.testing.assert_close(cached, expected, rtol=1e-5, atol=1e-5)
    assert step(2, cache=True)[0]["loss/raw"] != pytest.approx(terms["loss/raw"], rel=1e-3)  # dropout is on


@pytest.mark.parametrize(("update", "on"), [(0, False), (29, False), (30, True), (31, True)])
def test_the_kl_term_joins_after_exactly_kl_start_update_updates(backbone, batch, update: int, on: bool):
    terms = stage1_backward(engine_of(backbone), batch, LOSS, update)
    assert ("loss/kl" in terms) is on
    expected = direct_eq_7(backbone, batch, LOSS, kl=on)
    assert terms["loss/total"] == pytest.approx(expected["loss/total"].item(), rel=1e-5)


def test_the_accuracy_is_the_share_of_requests_whose_positive_ranks_first(backbone, batch):
    terms = stage1_backward(engine_of(backbone), batch, LOSS, 0)
    documents = backbone.encode(batch.documents, 0).double()
    for key, view in (("train/accuracy_raw", batch.raw), ("train/accuracy_cot", batch.privileged)):
        hits = 0
        for i, query in enumerate(backbone.encode(view, 0).double()):
            scores = {j: float(query @ documents[j]) for j in range(5) if not batch.masked[i, j]}
            hits += max(scores, key=lambda j: scores[j]) == int(batch.positive[i])
        assert terms[key] == pytest.approx(hits / 3)


def test_an_excluded_neighbour_is_out_of_the_denominator(backbone, data_config, record):
    records = [record("chart", "form"), record("form", "plot")]
    config = with_options(lambda_cot=0.0, lambda_kl=0.0, lambda_lm=0.0)
    batch = Stage1Collator(backbone, data_config, {"chart": {"plot"}})(records)
    loss = stage1_backward(engine_of(backbone), batch, config, 0)["loss/raw"]
    similarity = backbone.encode(batch.raw, 0).double() @ backbone.encode(batch.documents, 0).double().T / 0.3
    assert batch.document_ids == ["chart", "form", "plot"]
    rows = [similarity[0, :2].exp(), similarity[1].exp()]
    expected = -(math.log(rows[0][0] / rows[0].sum()) + math.log(rows[1][1] / rows[1].sum())) / 2
    assert loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", ["token_mean", "sum"])
def test_only_rationale_tokens_and_their_end_token_carry_lm_loss(backbone, batch, reduction: str):
    # with a head of zeros each of the counted tokens costs ln 400, and nothing else may count
    torch.nn.init.zeros_(backbone.model.get_output_embeddings().weight)
    lengths = [
        len(backbone.tokenizer.hf(text, add_special_tokens=False)["input_ids"]) + 1
        for text in (
            "The user needs skills for chart.",
            "The user needs skills for filling many forms at once.",
            "The user needs skills for sql.",
        )
    ]
    terms = stage1_backward(engine_of(backbone), batch, with_options(lm_reduction=reduction, micro_batch_tokens=60), 0)
    tokens = {"token_mean": 1.0, "sum": sum(lengths) / 3}[reduction]
    assert terms["loss/lm"] == pytest.approx(tokens * math.log(400), rel=1e-6)


def test_terms_with_weight_zero_are_not_computed(backbone, batch):
    config = with_options(lambda_cot=0.0, lambda_kl=0.0, lambda_lm=0.0)
    terms = stage1_backward(engine_of(backbone), batch, config, 100)
    assert set(terms) == {"loss/total", "loss/raw", "train/accuracy_raw"}
    assert terms["loss/total"] == pytest.approx(0.7 * terms["loss/raw"])


def test_a_retrieval_loss_that_is_not_a_number_raises(backbone, batch):
    with torch.no_grad():
        backbone.model.base_model.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="the retrieval loss is nan"):
        stage1_backward(engine_of(backbone), batch, LOSS, 0)


def test_an_lm_loss_that_is_not_a_number_raises(backbone, batch, monkeypatch):
    original = backbone.response_log_probs
    monkeypatch.setattr(
        backbone, "response_log_probs", lambda *args: tuple(t * float("nan") for t in original(*args)), raising=False
    )
    with pytest.raises(FloatingPointError, match="the rationale LM loss is nan"):
        stage1_backward(engine_of(backbone), batch, LOSS, 0)
