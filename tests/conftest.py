"""What every test shares: no network, a fixed thread count, the real data set and a local Ray cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Set before any test module imports the libraries that read them at import; Ray workers inherit them.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_DATASETS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    WANDB_MODE="offline",
    WANDB_SILENT="true",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    VLLM_NO_USAGE_STATS="1",
    DO_NOT_TRACK="1",
    MPLBACKEND="Agg",
)
os.environ.setdefault("OMP_NUM_THREADS", "2")

RAY_CPUS = 4
"""Logical CPUs of the test cluster: enough for one actor of each role, whatever the machine has."""

DATA_FILES = ("skills.jsonl.gz", "train.jsonl", "dev_bench.jsonl", "dev_bench_hard.jsonl")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real skills and requests: ``SKILLREASON_DATA``, or ``shared/data`` beside the checkout."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("SKILLREASON_DATA") or beside)
    missing = [name for name in DATA_FILES if not (folder / name).is_file()]
    if missing:
        pytest.skip(f"the real data set is not in {folder} (missing {', '.join(missing)}); set SKILLREASON_DATA to it")
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster of this machine alone, started once for the session and shut down at its end."""
    import ray

    ray.init(
        address="local",
        num_cpus=RAY_CPUS,
        num_gpus=0,
        include_dashboard=False,
        object_store_memory=512 * 2**20,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    yield
    ray.shutdown()


TINY_TEXTS = [
    "The user needs skills for spreadsheet analysis and chart drawing.",
    "Fill the fields of a PDF form from a table of values.",
    "Find the slow SQL queries and add the missing index.",
    "Given a task description, retrieve the most relevant skill document that would help an agent complete the task",
    "In summary, the retrieval representation for this task is:",
]


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 causal LM of some 35,000 parameters whose predictions depend on the whole input; read it, never write to it."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.tiny import TinyConfig, create_tiny

    shape = TinyConfig(vocab_size=400, hidden_size=32, intermediate_size=64, num_heads=4, num_key_value_heads=2)
    folder = create_tiny(TINY_TEXTS, tmp_path_factory.mktemp("backbone") / "tiny", shape)
    # Redrawn at one large scale: where each token all but predicts itself, tests could not tell right from wrong.
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.3, generator=generator)
    model.save_pretrained(folder)
    return folder
