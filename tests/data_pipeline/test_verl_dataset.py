"""Our rows in verl's hands: its own dataset class, chat template and tokenization give the policy exactly our prompt."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from omegaconf import OmegaConf

from data_pipeline.records import RecordError, Stage2Record, record_to_row, write_records
from data_pipeline.rows import write_rows
from data_pipeline.verl_dataset import CHAT_TEMPLATE, export_verl_dataset
from models.tokenization import ModelTokenizer

QUERIES = [
    "Draw the chart of last month.",
    "  white space, \t tabs and line ends \n\n\n ",
    "Jinja's own {{ messages }} and {% if x %} and {# this #}",
    "a special token <|endoftext|> in the text, and Übergröße, 表 and 🎈",
    "<image> and <video> are words here",
]


def record(number: int, query: str, positive: str = "") -> Stage2Record:
    negatives = [f"lib/n{number}-{i}" for i in range(3)]
    return Stage2Record(
        record_id=f"r{number}",
        query=query,
        query_capability="The user needs skills for charts.",
        positive_id=positive or f"lib/p{number}",
        positive=f"p{number} | draws | body of {number}",
        negative_ids=tuple(negatives),
        negatives=tuple(f"{s} | other | text" for s in negatives),
        category="lib",
        original_query="Draw.",
    )


@pytest.fixture
def records_file(tmp_path: Path) -> Callable[[Sequence[Stage2Record]], Path]:
    def write(records: Sequence[Stage2Record]) -> Path:
        write_records(tmp_path / "stage2.jsonl", records)
        return tmp_path / "stage2.jsonl"

    return write


def verl_rows(parquet: Path, folder: Path, cache: Path) -> tuple[list[dict[str, Any]], Any]:
    """The rows that verl's trainer would see, and its model config with our template, as its trainers make both."""
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.workers.config import HFModelConfig

    model = HFModelConfig(path=str(folder), custom_chat_template=CHAT_TEMPLATE)
    data = OmegaConf.create({"cache_dir": str(cache), "max_prompt_length": 512, "filter_overlong_prompts": True})
    data.filter_overlong_prompts_workers = 1
    dataset = RLHFDataset(str(parquet), tokenizer=model.tokenizer, config=data, processor=model.processor)
    return [dataset[i] for i in range(len(dataset))], model


def test_verl_feeds_the_policy_the_tokens_of_our_rollouts(tiny_folder: Path, records_file, tmp_path: Path):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    file = records_file([record(i, query) for i, query in enumerate(QUERIES)])
    written = export_verl_dataset(file, tiny_folder, tmp_path / "verl", heldout_fraction=0.0, max_prompt_length=512)
    rows, model = verl_rows(written.train, tiny_folder, tmp_path / "cache")
    # what verl's agent loop tokenizes a prompt with
    builder = create_continuous_token_builder(model.tokenizer, hf_model_type=model.hf_config.model_type)
    tokens = [builder.build_initial_tokens(list(row["raw_prompt"])) for row in rows]
    expected = ModelTokenizer.load(tiny_folder).encode_prompts(QUERIES, 512)
    assert tokens == expected
    assert written.longest_prompt == max(map(len, expected))


def test_a_response_is_not_changed_by_the_template(tiny_folder: Path):
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    hf = ModelTokenizer.load(tiny_folder).hf
    hf.chat_template = CHAT_TEMPLATE
    merged = create_continuous_token_builder(hf, hf_model_type="qwen3").merge_assistant_tokens([5, 6], [7, 8, 9])
    assert merged.token_ids == [5, 6, 7, 8, 9]


def test_a_row_carries_the_record_s_candidates(tiny_folder: Path, records_file, tmp_path: Path):
    original = record(0, QUERIES[0])
    written = export_verl_dataset(records_file([original]), tiny_folder, tmp_path / "verl", heldout_fraction=0.0)
    (row,), _ = verl_rows(written.train, tiny_folder, tmp_path / "cache")
    assert row["data_source"] == "skillreason"
    assert row["raw_prompt"] == [
        {"role": "user", "content": "USER TASK:\nDraw the chart of last month.\n\nQUERY ANALYSIS:\n"}
    ]
    assert row["reward_model"] == {"style": "rule", "ground_truth": "lib/p0"}
    assert row["extra_info"] == {
        "index": 0,
        "record_id": "r0",
        "query": QUERIES[0],
        "positive": "p0 | draws | body of 0",
        "negative_ids": ["lib/n0-0", "lib/n0-1", "lib/n0-2"],
        "negatives": ["lib/n0-0 | other | text", "lib/n0-1 | other | text", "lib/n0-2 | other | text"],
    }


def test_a_row_s_candidates_survive_verl_s_batches(tiny_folder: Path, records_file, tmp_path: Path):
    """The default trainer collates rows, puts them into a TensorDict and takes single rows out again."""
    from verl.utils import tensordict_utils
    from verl.utils.dataset.rl_dataset import collate_fn

    file = records_file([record(i, query) for i, query in enumerate(QUERIES)])
    written = export_verl_dataset(file, tiny_folder, tmp_path / "verl", heldout_fraction=0.0)
    rows, _ = verl_rows(written.train, tiny_folder, tmp_path / "cache")
    columns = dict(tensordict_utils.get_tensordict(collate_fn([dict(row) for row in rows])).items())
    for i, row in enumerate(rows):
        assert columns["extra_info"][i].data == row["extra_info"]
        assert columns["reward_model"][i].data == row["reward_model"]


def test_the_prompt_is_the_one_the_model_was_trained_with(tiny_folder: Path, records_file, tmp_path: Path):
    paper = tmp_path / "paper"
    shutil.copytree(tiny_folder, paper)
    config = json.loads((paper / "config.json").read_text())
    (paper / "config.json").write_text(json.dumps(config | {"rationale_prompt": "paper"}))
    written = export_verl_dataset(records_file([record(0, "Draw.")]), paper, tmp_path / "verl", heldout_fraction=0.0)
    content = pyarrow.parquet.read_table(written.train).to_pylist()[0]["prompt"][0]["content"]
    assert content.startswith("Given a user task, write one concise query-analysis sentence for skill retrieval.\n")
    assert content.endswith("\n\nUSER TASK:\nDraw.\n\nQUERY ANALYSIS:\n")


def test_skills_are_held_out_as_in_our_own_trainer(tiny_folder: Path, records_file, tmp_path: Path):
    from trainers.validation import split_heldout

    records = [record(i, f"request {i}", positive=f"lib/p{i // 2}") for i in range(60)]
    written = export_verl_dataset(records_file(records), tiny_folder, tmp_path / "verl", heldout_fraction=0.3)
    assert written.val is not None
    ids = [
        [row["extra_info"]["record_id"] for row in pyarrow.parquet.read_table(path).to_pylist()]
        for path in (written.train, written.val)
    ]
    assert ids == [[r.record_id for r in side] for side in split_heldout(records, 0.3)]
    assert (written.train_rows, written.val_rows) == tuple(map(len, ids))


def test_a_prompt_that_verl_would_cut_is_refused_with_its_record(tiny_folder: Path, records_file, tmp_path: Path):
    file = records_file([record(0, "short"), record(1, "long " * 80), record(2, "long " * 70)])
    longest = len(ModelTokenizer.load(tiny_folder).encode_prompts(["long " * 80], 9999)[0])
    short = len(ModelTokenizer.load(tiny_folder).encode_prompts(["short"], 9999)[0])
    problem = f"2 of 3 prompts are longer than {short} tokens, the longest is {longest} \\(record 'r1'\\)"
    with pytest.raises(ValueError, match=problem):
        export_verl_dataset(file, tiny_folder, tmp_path / "verl", heldout_fraction=0.0, max_prompt_length=short)
    assert not (tmp_path / "verl").exists()


def test_a_split_with_an_empty_side_is_refused(tiny_folder: Path, records_file, tmp_path: Path):
    with pytest.raises(ValueError, match=r"heldout_fraction is 1e-09: 2 of 2 records .* 0 held out"):
        export_verl_dataset(
            records_file([record(0, "a"), record(1, "b")]), tiny_folder, tmp_path / "verl", heldout_fraction=1e-9
        )


def test_stage_one_records_are_refused(tiny_folder: Path, tmp_path: Path):
    row = record_to_row(record(0, "a"))
    del row["original_query"]
    write_rows(tmp_path / "stage1.jsonl", [row])
    with pytest.raises(RecordError, match="original_query"):
        export_verl_dataset(tmp_path / "stage1.jsonl", tiny_folder, tmp_path / "verl")


def test_the_same_records_give_the_same_bytes(tiny_folder: Path, records_file, tmp_path: Path):
    file = records_file([record(i, query) for i, query in enumerate(QUERIES)])
    files = [
        export_verl_dataset(file, tiny_folder, tmp_path / name, heldout_fraction=0.0).train.read_bytes()
        for name in ("a", "b")
    ]
    assert files[0] == files[1]
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["train.parquet"]


def test_the_command_writes_the_files_and_says_what_verl_needs(tiny_folder: Path, records_file, tmp_path: Path):
    from typer.testing import CliRunner

    from skillreason.cli import app

    file = records_file([record(i, f"request {i}") for i in range(40)])
    prompts = ModelTokenizer.load(tiny_folder).encode_prompts([f"request {i}" for i in range(40)], 512)
    arguments = ["--records", str(file), "--model", str(tiny_folder), "--out", str(tmp_path / "verl")]
    result = CliRunner().invoke(app, ["verl-dataset", *arguments, "--heldout-fraction", "0.2"])
    rows = [pyarrow.parquet.read_table(tmp_path / "verl" / name).num_rows for name in ("train.parquet", "val.parquet")]
    assert result.exit_code == 0, result.output
    assert sum(rows) == 40
    assert f"{rows[0]} training and {rows[1]} held-out rows" in result.output
    assert f"longest prompt: {max(map(len, prompts))} tokens" in result.output


def test_no_validation_rows_of_an_earlier_export_stay(tiny_folder: Path, records_file, tmp_path: Path):
    file = records_file([record(i, f"request {i}") for i in range(40)])
    assert export_verl_dataset(file, tiny_folder, tmp_path / "verl", heldout_fraction=0.2).val is not None
    assert export_verl_dataset(file, tiny_folder, tmp_path / "verl", heldout_fraction=0.0).val is None
    assert [p.name for p in (tmp_path / "verl").iterdir()] == ["train.parquet"]
