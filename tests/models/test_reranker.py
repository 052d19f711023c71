"""The reranker: its template to the letter, scores against a direct computation, the shared prefix, and the export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import CrossEncoder
from transformers import AutoModelForCausalLM, AutoTokenizer

from models.reranker import Reranker, common_prefix, export_reranker
from models.reranker_format import RERANK_INSTRUCTION, PairTokenizer, RerankerFormat, answer_token_ids, read_format
from models.tokenization import BackboneError, ModelTokenizer

LETTERS = RerankerFormat(yes="y", no="n", max_length=1024)
"""Single letters are tokens of every byte-level tokenizer; "yes" is none of the tiny one's."""
QUERY = "please fill this form for me?"
DOCUMENTS = [
    "forms | Fills forms | Reads a PDF form and fills the fields from a table of values.",
    "charts | Draws charts",
    "sql | Finds slow queries | " + "Add the missing index. " * 12,
    "\n odd start",
    "",
    "ends in a line break\n",
]
TEMPLATE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: INSTRUCTION\n<Query>: QUERY\n<Document>: DOCUMENT<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
"""As the model card of Qwen3-Reranker has it."""


@pytest.fixture(scope="module")
def reranker(tiny_folder: Path) -> Reranker:
    return Reranker.load(tiny_folder, form=LETTERS).eval()


@pytest.fixture(scope="module")
def exported(reranker: Reranker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_reranker(reranker, LETTERS, tmp_path_factory.mktemp("export") / "reranker")


# -- the input ------------------------------------------------------------------------------------------------------------


def test_the_template_is_qwen3_rerankers(tiny_folder: Path):
    tokenizer = ModelTokenizer.load(tiny_folder)
    (ids,) = PairTokenizer(tokenizer, RerankerFormat(instruction="Find it.")).pairs("a query", ["a document"])
    text = TEMPLATE.replace("INSTRUCTION", "Find it.").replace("QUERY", "a query").replace("DOCUMENT", "a document")
    assert ids == tokenizer.hf(text, add_special_tokens=False)["input_ids"]


def test_a_rationale_stands_between_request_and_document(tiny_folder: Path):
    tokenizer = ModelTokenizer.load(tiny_folder)
    (ids,) = PairTokenizer(tokenizer, RerankerFormat()).pairs("a query", ["a document"], "The user needs charts.")
    text = TEMPLATE.replace("INSTRUCTION", RERANK_INSTRUCTION).replace("DOCUMENT", "a document")
    text = text.replace("QUERY", "a query\nQuery analysis:The user needs charts.")
    assert ids == tokenizer.hf(text, add_special_tokens=False)["input_ids"]


def test_skill2querys_documents_and_truncations():
    form = RerankerFormat(document_format="skill2query", query_chars=1500, description_chars=500, body_chars=2000)
    document = form.document("charts", "d" * 501, "b" * 2001)
    assert document == f"Name: charts\nDescription: {'d' * 500}\nBody: {'b' * 2000}"
    assert form.request("q" * 1501) == "q" * 1500


def test_an_over_long_pair_loses_the_end_of_the_document(reranker: Reranker):
    whole = reranker.pairs.pairs(QUERY, DOCUMENTS[2:3])[0]
    suffix = reranker.tokenizer.hf(TEMPLATE.split("DOCUMENT")[1], add_special_tokens=False)["input_ids"]
    limit = len(whole) - 20
    short = PairTokenizer(reranker.tokenizer, RerankerFormat(yes="y", no="n", max_length=limit))
    (cut,) = short.pairs(QUERY, DOCUMENTS[2:3])
    assert cut == whole[: limit - len(suffix)] + suffix


def test_a_request_that_leaves_no_room_for_a_document_loses_its_own_end(reranker: Reranker):
    encode = reranker.tokenizer.hf
    form = RerankerFormat(yes="y", no="n", max_length=400)
    (ids,) = PairTokenizer(reranker.tokenizer, form).pairs("form " * 400, ["charts"])
    tail = encode("\n<Document>: ", add_special_tokens=False)["input_ids"]
    tail += encode(TEMPLATE.split("DOCUMENT")[1], add_special_tokens=False)["input_ids"]
    head = encode(form.head, add_special_tokens=False)["input_ids"]
    assert len(ids) == 400
    assert ids[: len(head)] == head
    assert ids[-len(tail) :] == tail


def test_a_limit_below_the_template_is_refused(reranker: Reranker):
    short = PairTokenizer(reranker.tokenizer, RerankerFormat(max_length=50))
    with pytest.raises(ValueError, match="a maximum of 50 tokens leaves no room for the pair: the template takes"):
        short.pairs(QUERY, DOCUMENTS)


# -- scores ---------------------------------------------------------------------------------------------------------------


def directly(reranker: Reranker, query: str, documents: list[str]) -> np.ndarray:
    """logit(yes) − logit(no) of the causal LM's own head in float64, one unpadded pair at a time."""
    yes, no = (reranker.tokenizer.hf(a, add_special_tokens=False)["input_ids"][0] for a in ("y", "n"))
    found = []
    for ids in reranker.pairs.pairs(query, documents):
        with torch.no_grad():
            hidden = reranker.model.base_model(torch.tensor([ids])).last_hidden_state[0, -1].double()
        logits = hidden @ reranker.model.lm_head.weight.detach().double().T
        found.append(float(logits[yes] - logits[no]))
    return np.array(found)


@pytest.mark.parametrize("budget", [1, 700, 100_000])
@pytest.mark.parametrize("share", [True, False])
def test_scores_are_the_logit_difference_whatever_is_shared_and_batched(reranker: Reranker, budget: int, share: bool):
    expected = directly(reranker, QUERY, DOCUMENTS)
    assert np.ptp(expected) > 0.1  # documents differ
    scores = reranker.score(QUERY, DOCUMENTS, token_budget=budget, share_prefix=share)
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


def test_the_shared_prefix_is_computed_once(reranker: Reranker, monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[int, int]] = []
    forward = reranker.model.base_model.forward

    def counting(**arguments):
        seen.append(tuple(arguments["input_ids"].shape))
        return forward(**arguments)

    monkeypatch.setattr(reranker.model.base_model, "forward", counting)
    pairs = reranker.pairs.pairs(QUERY, DOCUMENTS[:3])
    shared = common_prefix(pairs)
    reranker.score(QUERY, DOCUMENTS[:3])
    assert shared > 0.5 * min(len(p) for p in pairs)
    assert seen == [(1, shared), (3, max(len(p) for p in pairs) - shared)]


def test_one_document_and_equal_documents(reranker: Reranker):
    expected = directly(reranker, QUERY, DOCUMENTS[:1])
    np.testing.assert_allclose(reranker.score(QUERY, DOCUMENTS[:1]), expected, atol=1e-5)
    np.testing.assert_allclose(reranker.score(QUERY, DOCUMENTS[:1] * 3), np.repeat(expected, 3), atol=1e-5)


@pytest.mark.parametrize(
    ("sequences", "length"),
    [
        ([[1, 2, 3], [1, 2, 4]], 2),
        ([[1, 2], [1, 2]], 1),
        ([[1, 2, 3], [1, 2]], 1),
        ([[5, 2], [1, 2]], 0),
        ([[7], [7]], 0),
    ],
)
def test_the_common_prefix_leaves_each_sequence_its_last_token(sequences: list[list[int]], length: int):
    assert common_prefix(sequences) == length


def test_a_layer_that_keeps_a_window_alone_shares_nothing(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "windowed")
    config = json.loads((folder / "config.json").read_text())
    config |= {"use_sliding_window": True, "sliding_window": 16, "layer_types": ["sliding_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    windowed = Reranker.load(folder, form=LETTERS).eval()
    np.testing.assert_allclose(windowed.score(QUERY, DOCUMENTS), directly(windowed, QUERY, DOCUMENTS), atol=1e-5)


def test_a_heads_bias_counts(tiny_folder: Path, reranker: Reranker):
    biased = Reranker.load(tiny_folder, form=LETTERS).eval()
    yes, no = biased.answer_ids
    bias = torch.zeros(400)
    bias[yes], bias[no] = 0.5, -0.25
    biased.answer_score.bias = torch.nn.Parameter(bias)
    difference = biased.score(QUERY, DOCUMENTS) - reranker.score(QUERY, DOCUMENTS)
    np.testing.assert_allclose(difference, 0.75, atol=1e-5)


# -- the answers ----------------------------------------------------------------------------------------------------------


def test_answers_that_are_no_single_token_are_refused_by_name(tiny_folder: Path):
    with pytest.raises(
        BackboneError, match=r"the answer 'yes' is \d tokens of the tokenizer; expected one known token"
    ):
        Reranker.load(tiny_folder)


def test_the_answers_must_differ(tiny_folder: Path):
    tokenizer = ModelTokenizer.load(tiny_folder)
    with pytest.raises(BackboneError, match="the answers 'y' and 'y' are the same token"):
        answer_token_ids(tokenizer, RerankerFormat(yes="y", no="y"), "tiny")


# -- the export -----------------------------------------------------------------------------------------------------------


def test_the_export_keeps_format_and_scores(exported: Path, reranker: Reranker):
    loaded = Reranker.load(exported)
    assert loaded.form == LETTERS
    assert loaded.answer_ids == reranker.answer_ids
    np.testing.assert_array_equal(loaded.score(QUERY, DOCUMENTS), reranker.score(QUERY, DOCUMENTS))


def test_cross_encoder_gives_the_same_scores(exported: Path, reranker: Reranker):
    model = CrossEncoder(str(exported), device="cpu")
    scores = model.predict([(QUERY, document) for document in DOCUMENTS])
    np.testing.assert_allclose(scores, reranker.score(QUERY, DOCUMENTS), rtol=0, atol=1e-5)
    best = model.rank(QUERY, DOCUMENTS)[0]["corpus_id"]
    assert best == int(np.argmax(reranker.score(QUERY, DOCUMENTS)))


def test_cross_encoder_cuts_where_we_cut(reranker: Reranker, tmp_path: Path):
    form = RerankerFormat(yes="y", no="n", max_length=300, query_chars=20)
    model = CrossEncoder(str(export_reranker(reranker, form, tmp_path / "short")), device="cpu")
    ours = Reranker.load(tmp_path / "short")
    lengths = [len(ids) for ids in ours.pairs.pairs(QUERY, DOCUMENTS)]
    assert max(lengths) == 300 > min(lengths)  # some are cut
    scores = model.predict([(QUERY, document) for document in DOCUMENTS])
    np.testing.assert_allclose(scores, ours.score(QUERY, DOCUMENTS), rtol=0, atol=1e-5)


def test_another_instruction_is_cross_encoders_prompt(exported: Path, tiny_folder: Path):
    model = CrossEncoder(str(exported), device="cpu")
    form = RerankerFormat(instruction="Find charts.", yes="y", no="n")
    expected = directly(Reranker.load(tiny_folder, form=form).eval(), QUERY, DOCUMENTS)
    scores = model.predict([(QUERY, document) for document in DOCUMENTS], prompt="Find charts.")
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-5)


def test_the_exports_tokenizer_appends_what_the_models_own_does(tiny_folder: Path, tmp_path: Path):
    folder = shutil.copytree(tiny_folder, tmp_path / "bare")
    own = AutoTokenizer.from_pretrained(folder)
    own.backend_tokenizer.post_processor = None  # as Qwen3-Reranker's, which appends nothing
    own.save_pretrained(folder)
    reranker = Reranker.load(folder, form=LETTERS)
    assert reranker.tokenizer.hf("charts")["input_ids"][-1] == reranker.tokenizer.pooling_token_id
    exported = export_reranker(reranker, LETTERS, tmp_path / "export")
    for tokenizer in (AutoTokenizer.from_pretrained(exported), own):
        assert tokenizer("charts")["input_ids"] == tokenizer("charts", add_special_tokens=False)["input_ids"]
    assert reranker.tokenizer.hf("charts")["input_ids"][-1] == reranker.tokenizer.pooling_token_id
    assert Reranker.load(exported).score(QUERY, DOCUMENTS).tolist() == reranker.score(QUERY, DOCUMENTS).tolist()


def test_the_export_is_a_causal_lm_too(exported: Path, reranker: Reranker):
    model = AutoModelForCausalLM.from_pretrained(exported)
    for name, value in model.named_parameters():
        assert torch.equal(value, reranker.state()[name]), name


def test_a_failed_export_leaves_the_old_one(exported: Path, reranker: Reranker, monkeypatch: pytest.MonkeyPatch):
    before = {file.name: file.stat().st_mtime_ns for file in exported.rglob("*")}

    def full(*arguments, **settings):
        raise OSError("no space left")

    monkeypatch.setattr("models.reranker.write_json", full)
    with pytest.raises(OSError, match="no space left"):
        export_reranker(reranker, LETTERS, exported)
    assert {file.name: file.stat().st_mtime_ns for file in exported.rglob("*")} == before
    assert [folder.name for folder in exported.parent.iterdir()] == ["reranker"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda stored: {**stored, "yes_token_id": 5},
            "token ids of yes and no are .*the tokenizer beside it has others",
        ),
        (lambda stored: {k: v for k, v in stored.items() if k != "max_length"}, "not a reranker's format.*max_length"),
        (lambda stored: [], "not a reranker's format"),
    ],
)
def test_a_damaged_format_is_refused_by_file(exported: Path, tmp_path: Path, damage, message: str):
    stored = json.loads((exported / "reranker.json").read_text())
    (tmp_path / "reranker.json").write_text(json.dumps(damage(stored)))
    with pytest.raises(BackboneError, match=f"{tmp_path}/reranker.json: {message}"):
        read_format(tmp_path, ModelTokenizer.load(exported))


def test_in_bfloat16_the_logits_are_not_rounded(tiny_folder: Path):
    loaded = Reranker.load(tiny_folder, form=LETTERS, dtype="bfloat16").eval()
    scores = loaded.score(QUERY, DOCUMENTS[:1])
    (ids,) = loaded.pairs.pairs(QUERY, DOCUMENTS[:1])
    with torch.no_grad():
        hidden = loaded.hidden_states(torch.tensor([ids]), torch.ones(1, len(ids), dtype=torch.long))[0, -1].double()
    logits = hidden @ loaded.model.lm_head.weight.detach().double().T
    expected = float(logits[loaded.answer_ids[0]] - logits[loaded.answer_ids[1]])
    assert scores.dtype == np.float32
    assert scores[0] == pytest.approx(expected, abs=1e-4)
    assert scores[0] != pytest.approx(
        directly(loaded, QUERY, DOCUMENTS[:1])[0], abs=1e-4
    )  # the transformer is in bfloat16
