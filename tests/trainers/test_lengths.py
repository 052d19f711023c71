"""Maximum lengths that leave no room for the text are refused by key, and the least that is named is enough."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from configs import ConfigError
from models.tokenization import ModelTokenizer
from models.views import privileged_view, raw_view, teacher_view
from trainers.lengths import check_lengths
from trainers.stage1 import train_stage1

STAGE1 = ["data.max_length", "data.lm_max_length", "trainer.export_max_length"]
GRPO = ["data.max_query_length", "data.max_prompt_length", "trainer.export_max_length"]


def least(error: pytest.ExceptionInfo[ConfigError]) -> int:
    found = re.search(r"expected at least (\d+)", str(error.value))
    assert found
    return int(found[1])


@pytest.mark.parametrize("key", STAGE1)
def test_the_least_that_stage_one_names_is_accepted_and_one_less_is_not(make_stage1, tiny_folder, tmp_path, key: str):
    tokenizer = ModelTokenizer.load(tiny_folder)
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} is 25; ") as error:
        check_lengths(
            make_stage1(tmp_path, "trainer.export=true", "data.rationale_max_length=24", f"{key}=25"), tokenizer
        )
    check_lengths(make_stage1(tmp_path, "trainer.export=true", f"{key}={least(error)}"), tokenizer)
    with pytest.raises(ConfigError, match=re.escape(key)):
        check_lengths(make_stage1(tmp_path, "trainer.export=true", f"{key}={least(error) - 1}"), tokenizer)


@pytest.mark.parametrize("key", GRPO)
def test_the_least_that_stage_two_names_is_accepted_and_one_less_is_not(make_grpo, tiny_folder, tmp_path, key: str):
    tokenizer = ModelTokenizer.load(tiny_folder)
    with pytest.raises(ConfigError, match=rf"^{re.escape(key)} is 25; ") as error:
        check_lengths(make_grpo(tmp_path, "trainer.export=true", f"{key}=25"), tokenizer)
    check_lengths(make_grpo(tmp_path, "trainer.export=true", f"{key}={least(error)}"), tokenizer)
    with pytest.raises(ConfigError, match=re.escape(key)):
        check_lengths(make_grpo(tmp_path, "trainer.export=true", f"{key}={least(error) - 1}"), tokenizer)


def test_what_passes_fits_any_record(make_stage1, tiny_folder, tmp_path: Path):
    tokenizer = ModelTokenizer.load(tiny_folder)
    with pytest.raises(ConfigError) as error:
        check_lengths(make_stage1(tmp_path, "data.max_length=25"), tokenizer)
    long = "a request that is far too long " * 50
    for view in (raw_view(long), privileged_view(long, long), teacher_view(long, long)):
        (ids,) = tokenizer.encode_views([view], least(error))
        assert len(ids) == least(error)


def test_a_run_is_refused_before_it_leaves_a_trace(make_stage1, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"data\.max_length is 20"):
        train_stage1(make_stage1(tmp_path / "runs", "data.max_length=20"))
    assert not (tmp_path / "runs").exists()
