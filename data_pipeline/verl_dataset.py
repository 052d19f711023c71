"""Stage-II records as verl's Parquet rows: the policy gets our rollout prompt, the reward manager the record's candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_pipeline.heldout import is_heldout
from data_pipeline.records import Stage2Record, read_stage2
from models.folders import atomic_file
from models.tokenization import ModelTokenizer
from models.views import rationale_prompt

CHAT_TEMPLATE = "{{ messages[0].content }}"
"""verl applies the model's chat template to every prompt; this one passes the only message's text through unchanged."""

DATA_SOURCE = "skillreason"
"""Names the rows in verl's curves: ``val-core/skillreason/…``."""


@dataclass(frozen=True)
class VerlDataset:
    """What was written: rows, files (no ``val`` where nothing is held out) and the longest prompt in tokens."""

    train: Path
    val: Path | None
    train_rows: int
    val_rows: int
    longest_prompt: int


def export_verl_dataset(
    records_file: str | Path,
    model: str | Path,
    out: str | Path,
    *,
    heldout_fraction: float = 0.1,
    max_prompt_length: int = 1024,
) -> VerlDataset:
    """Write ``train.parquet`` and ``val.parquet`` of Stage-II records into the folder ``out``.

    Args:
        records_file: Stage-II records; all records of a skill fall on one side, the one our own trainer puts them on.
        model: folder or hub id of the policy; its config says which rationale prompt it was trained with.
        max_prompt_length: what verl's ``data.max_prompt_length`` will be.

    Raises:
        RecordError: a record that cannot be used.
        ValueError: a prompt is longer than ``max_prompt_length`` (verl would cut its beginning, the instruction), or one side of
            the split is empty.
    """
    records, tokenizer, folder = read_stage2(records_file), ModelTokenizer.load(model), Path(out)
    lengths = [len(ids) for ids in tokenizer.encode_prompts([r.query for r in records], 2**31)]
    longest = max(range(len(records)), key=lengths.__getitem__)
    if lengths[longest] > max_prompt_length:
        raise ValueError(
            f"{records_file}: {sum(n > max_prompt_length for n in lengths)} of {len(records)} prompts are longer than "
            f"{max_prompt_length} tokens, the longest is {lengths[longest]} (record {records[longest].record_id!r}); "
            "expected a maximum that holds them all, here and in verl's data.max_prompt_length"
        )
    heldout = [r for r in records if is_heldout(r.positive_id, heldout_fraction)]
    training = [r for r in records if not is_heldout(r.positive_id, heldout_fraction)]
    if not training or (heldout_fraction and not heldout):
        raise ValueError(
            f"heldout_fraction is {heldout_fraction}: {len(training)} of {len(records)} records are left for training and "
            f"{len(heldout)} held out; expected some of each, or 0 to hold out none"
        )
    train, val = folder / "train.parquet", folder / "val.parquet"
    if heldout:
        write_verl_rows(val, heldout, tokenizer.prompt_style)
    else:
        val.unlink(missing_ok=True)  # of an earlier export: its skills are trained on now
    write_verl_rows(train, training, tokenizer.prompt_style)
    return VerlDataset(
        train=train,
        val=val if heldout else None,
        train_rows=len(training),
        val_rows=len(heldout),
        longest_prompt=lengths[longest],
    )


def write_verl_rows(path: str | Path, records: Sequence[Stage2Record], prompt_style: str) -> None:
    """Write one Parquet file, atomically; the same records give the same bytes."""
    import pyarrow
    import pyarrow.parquet

    text, texts = pyarrow.string(), pyarrow.list_(pyarrow.string())
    schema = pyarrow.schema(
        {
            "data_source": text,
            "prompt": pyarrow.list_(pyarrow.struct({"role": text, "content": text})),
            "ability": text,
            "reward_model": pyarrow.struct({"style": text, "ground_truth": text}),
            "extra_info": pyarrow.struct(
                {
                    "index": pyarrow.int64(),
                    "record_id": text,
                    "query": text,
                    "positive": text,
                    "negative_ids": texts,
                    "negatives": texts,
                }
            ),
        }
    )
    rows = [verl_row(record, index, prompt_style) for index, record in enumerate(records)]
    with atomic_file(path) as handle:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema=schema), handle)


def verl_row(record: Stage2Record, index: int, prompt_style: str) -> dict[str, Any]:
    """One row: verl's own columns, with the positive's id as ground truth and the candidates in ``extra_info``.

    verl draws a ``uid`` for each row itself at every step; ``extra_info.record_id`` is what stays.
    """
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": rationale_prompt(record.query, prompt_style).text}],
        "ability": "retrieval",
        "reward_model": {"style": "rule", "ground_truth": record.positive_id},
        "extra_info": {
            "index": index,
            "record_id": record.record_id,
            "query": record.query,
            "positive": record.positive,
            "negative_ids": list(record.negative_ids),
            "negatives": list(record.negatives),
        },
    }
