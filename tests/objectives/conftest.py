"""Stage-I records over four small skills."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from configs.schema import Stage1DataConfig
from data_pipeline.records import Stage1Record
from models.backbone import Backbone

DOCUMENTS = {
    "chart": "chart | Makes charts | Draws bars and lines.",
    "form": "form | Fills forms | Reads the fields of a PDF form and fills them from a table.",
    "sql": "sql | Tunes queries | Finds the slow one.",
    "notes": "notes | Summarizes a meeting | Lists decisions and tasks in a table.",
    "plot": "plot | Plots data | Draws a chart.",
}


@pytest.fixture(scope="session")
def record() -> Callable[..., Stage1Record]:
    """A record by the ids of its positive and negatives."""

    def make(positive: str, *negatives: str, query: str = "", rationale: str = "", weight: float = 1.0) -> Stage1Record:
        return Stage1Record(
            record_id=f"r-{positive}",
            query=query or f"I want something for {positive}",
            query_capability=rationale or f"The user needs skills for {positive}.",
            positive_id=positive,
            positive=DOCUMENTS[positive],
            negative_ids=negatives,
            negatives=tuple(DOCUMENTS[n] for n in negatives),
            category="",
            sample_weight=weight,
        )

    return make


@pytest.fixture(scope="session")
def data_config() -> Stage1DataConfig:
    return Stage1DataConfig(max_length=512, document_max_length=64, lm_max_length=128, rationale_max_length=48)


@pytest.fixture
def backbone(tiny_folder: Path) -> Backbone:
    return Backbone.load(tiny_folder).eval()
