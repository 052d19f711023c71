"""Pseudo-queries as training data (C.1, C.2), and C.3.1's loss from the Stage-I step that they are trained with."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from configs import Stage1Config, load_config
from data_pipeline import build_records
from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.records import Stage1Record, TrainingRequest, format_of_records
from data_pipeline.skill2query.pseudo_query import Form, PseudoQuery
from data_pipeline.skill2query.training import reranker_groups, sample_queries, training_requests
from retrieval import Ranking

CORPUS = SkillCorpus([Skill(f"garden/s{i}", f"s{i}", f"Does {i}.", f"# Body {i}") for i in range(12)])
LONG = "Please tell me how many litres of rain fell on bed"


def query(
    skill: str, template: str, text: str, valid: bool = True, capability: str = "measure the rain"
) -> PseudoQuery:
    problems = () if valid else ("type: x",)
    return PseudoQuery(f"{template}/{text}", skill, text, "c1", capability, template, text, Form.WH, {}, problems)


def test_a_skill_with_many_queries_gives_one() -> None:
    queries = [query("garden/s0", f"t{i}", f"{LONG} {i}?") for i in range(20)] + [
        query("garden/s1", "t0", f"{LONG} 99?")
    ]
    assert [q.skill_id for q in sample_queries(queries)] == ["garden/s0", "garden/s1"]


def test_templates_are_drawn_alike_however_many_fillings_they_have() -> None:
    drawn: Counter[str] = Counter()
    for number in range(600):
        skill = f"garden/x{number}"
        queries = [query(skill, "t-many", f"{LONG} {i}?") for i in range(9)] + [query(skill, "t-one", f"{LONG} 9?")]
        drawn[sample_queries(queries)[0].template_id] += 1
    assert drawn["t-one"] == pytest.approx(300, abs=75)  # five standard deviations and more; by query it would be 60


def test_seed_and_skill_decide_the_draw_and_other_skills_do_not() -> None:
    own = [query("garden/s0", f"t{i}", f"{LONG} {i}?") for i in range(50)]
    others = [query("garden/s1", f"t{i}", f"{LONG} {i}?") for i in range(50)]
    assert sample_queries(own, 1) == sample_queries([*others, *own], 1)[1:]
    assert len({sample_queries(own, seed)[0].query for seed in range(10)}) > 1


def test_valid_queries_of_eight_words_are_preferred_then_valid_ones() -> None:
    short, wrong, fine = (
        query("s", "a", "Rain?"),
        query("s", "b", f"{LONG} 1?", valid=False),
        query("s", "c", f"{LONG} 2?"),
    )
    for seed in range(8):
        assert sample_queries([short, wrong, fine], seed) == [fine]
        assert sample_queries([short, wrong], seed) == [short]
        assert sample_queries([wrong], seed) == [wrong]


def test_requests_have_the_sentence_of_the_rationale_and_skills_of_the_corpus_alone() -> None:
    queries = [query("garden/s0", "t", f"{LONG} 3?"), query("no/such", "t", f"{LONG} 4?")]
    (request,) = training_requests(queries, CORPUS)
    assert request.record_id == f"s2q/{queries[0].query_id}"
    assert (request.skill_id, request.query) == ("garden/s0", f"{LONG} 3?")
    assert request.query_capability == "The user needs skills for measuring the rain."
    assert request.implicit_query == ""


def test_queries_are_cut_at_1500_characters() -> None:
    (request,) = training_requests([query("garden/s0", "t", "rain " * 400)], CORPUS)
    assert len(request.query) == 1500


# -- the reranker's groups (C.1.2) ---------------------------------------------------------------------------------------


class Fixed:
    def __init__(self, *rows: list[str]) -> None:
        self.rows = list(rows)

    def search(self, queries, k: int) -> Ranking:
        assert k == 200
        return Ranking(self.rows, np.zeros((len(self.rows), 1)))


def request(skill: str) -> TrainingRequest:
    return TrainingRequest(f"s2q/{skill}", skill, "how much rain?", "The user needs skills for rain.")


def test_a_retrieved_positive_keeps_its_place() -> None:
    found = [f"garden/s{i}" for i in range(12)]
    (row,) = reranker_groups([request("garden/s3")], Fixed(found), CORPUS)
    assert [c["skill_id"] for c in row["candidates"]] == found[:10]
    assert [c["weight"] for c in row["candidates"]] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]


def test_a_missing_positive_replaces_the_last_candidate() -> None:
    found = [f"garden/s{i}" for i in range(12)]
    (row,) = reranker_groups([request("garden/s11")], Fixed(found), CORPUS)
    assert [c["skill_id"] for c in row["candidates"]] == [*found[:9], "garden/s11"]
    assert [c["weight"] for c in row["candidates"]] == [0] * 9 + [1]


def test_a_skill_retrieved_twice_is_one_candidate() -> None:
    (row,) = reranker_groups(
        [request("garden/s1")], Fixed(["garden/s0", "garden/s0", "garden/s1", "garden/s2"]), CORPUS, size=3
    )
    assert [c["skill_id"] for c in row["candidates"]] == ["garden/s0", "garden/s1", "garden/s2"]


def test_rows_have_the_keys_of_the_pipelines_groups() -> None:
    (row,) = reranker_groups([request("garden/s1")], Fixed(["garden/s0", "garden/s1"]), CORPUS, size=2)
    assert {key: type(value) for key, value in row.items()} == {
        "record_id": str,
        "source": str,
        "query": str,
        "query_capability": str,
        "teacher": str,
        "candidates": list,
    }
    assert row["source"] == "single"


def test_groups_larger_than_the_corpus_are_refused() -> None:
    with pytest.raises(ValueError, match="size is 13; expected 2 to 12"):
        reranker_groups([request("garden/s1")], Fixed([]), CORPUS, size=13)


# -- formats and configuration (C.2, C.3.1) --------------------------------------------------------------------------------


def test_records_of_the_format_have_labeled_lines_and_are_recognized() -> None:
    requests = [TrainingRequest("s2q/1", "garden/s0", f"{LONG} 3?", "The user needs skills for rain.")]
    built = build_records(requests, CORPUS, document_format="skill2query", threshold=0.999, copy_threshold=0.999)
    assert built.manifest["rejected"].get("stage1_id_text_mismatch") is None
    (record,) = built.stage1
    assert record.positive == "Name: s0\nDescription: Does 0.\nBody: # Body 0"
    assert all(text.startswith("Name: s") for text in record.negatives)
    assert format_of_records(built.stage1) == "skill2query"


def test_two_formats_in_one_file_are_refused() -> None:
    rows = [
        Stage1Record(f"r{i}", "q", "c", f"s{i}", text, ("n",), ("n",), "")
        for i, text in enumerate(("a | b | c", "Name: a\nDescription: b"))
    ]
    with pytest.raises(ValueError, match="record 'r0' in skillreason, record 'r1' in skill2query"):
        format_of_records(rows)


@pytest.mark.parametrize("name", ["skill2query_0.6b", "skill2query_small", "skill2query_tiny"])
def test_the_configurations_are_in_batch_infonce_alone(name: str) -> None:
    config = load_config(Stage1Config, name, ["model.path=x", "data.train_file=x"])
    loss = config.loss
    assert (loss.tau, loss.lambda_raw, loss.lambda_cot, loss.lambda_kl, loss.lambda_lm) == (0.05, 1, 0, 0, 0)
    assert (config.data.negatives_per_record, config.data.sampler) == (0, "unique_skill")
    if name.endswith("0.6b"):
        limits = (config.data.max_length, config.data.document_max_length, config.trainer.export_max_length)
        assert limits == (2048, 2048, 2048)


def test_the_step_computes_the_papers_loss(tiny_folder: Path) -> None:
    """-(1/B) Σ_i log( exp(sim(q_i, s_i)/τ) / Σ_j exp(sim(q_i, s_j)/τ) ), τ 0.05, in plain Python over the encoded vectors."""
    from configs.schema import OptimizerConfig
    from models.backbone import Backbone
    from models.views import document_view, raw_view
    from objectives.engine_torch import ReplicaEngine
    from objectives.stage1 import Stage1Collator, stage1_backward

    config = load_config(Stage1Config, "skill2query_tiny", ["model.path=x", "data.train_file=x"])
    backbone = Backbone.load(tiny_folder).eval()
    records = [
        Stage1Record(
            f"r{i}",
            f"{LONG} {i}?",
            "The user needs skills for rain.",
            s.skill_id,
            s.serialize("skill2query"),
            ("n",),
            ("never read",),
            "",
        )
        for i, s in enumerate(CORPUS[:5])
    ]
    tokenizer = backbone.tokenizer
    queries = backbone.encode(tokenizer.encode_views([raw_view(r.query) for r in records], 160), 0).tolist()
    skills = backbone.encode(tokenizer.encode_views([document_view(r.positive) for r in records], 96), 0).tolist()
    similarity = [[sum(a * b for a, b in zip(q, s, strict=True)) for s in skills] for q in queries]
    terms = [
        -row[i] / 0.05 + math.log(sum(math.exp(value / 0.05) for value in row)) for i, row in enumerate(similarity)
    ]
    engine = ReplicaEngine(backbone, OptimizerConfig())
    backbone.eval()
    metrics = stage1_backward(engine, Stage1Collator(backbone, config.data)(records), config.loss, update=0)
    assert metrics["loss/total"] == pytest.approx(sum(terms) / 5, rel=1e-4)
    assert {key for key in metrics if key.startswith("loss/")} == {"loss/total", "loss/raw"}


def test_an_export_says_its_format_and_documents_are_put_together_alike(tiny_folder: Path, tmp_path: Path) -> None:
    from models.backbone import Backbone
    from models.encoder import SentenceTransformerEncoder
    from models.export import export_causal_lm, export_retriever
    from models.tokenization import ModelTokenizer
    from retrieval.retriever import document_format

    backbone = Backbone.load(tiny_folder)
    assert backbone.tokenizer.document_format == "skillreason"
    backbone.tokenizer.document_format = "skill2query"
    export_retriever(backbone, tmp_path / "export", 64)
    export_causal_lm(backbone, tmp_path / "export" / "causal_lm")
    assert document_format(tmp_path / "export") == document_format(f"hybrid:{tmp_path / 'export'}") == "skill2query"
    assert document_format("bm25") == "skillreason"
    assert ModelTokenizer.load(tmp_path / "export" / "causal_lm").document_format == "skill2query"
    encoder = SentenceTransformerEncoder(tmp_path / "export", max_length=4096)
    whole, cut = encoder.encode_queries(["a" * 1500 + " rain" * 9, "a" * 1500])
    np.testing.assert_allclose(whole, cut, atol=1e-6)
