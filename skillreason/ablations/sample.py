"""The embedded sample library as a study's data: corpus, requests, records and an untrained backbone, made once."""

from __future__ import annotations

from pathlib import Path

from evaluation.study_table import BenchSpec
from skillreason.ablations.config import SAMPLE_BENCH, StudyConfig
from skillreason.demo import DemoPaths, make_backbone, write_sample_data

SEED = 42
"""Of data and backbone, which are the same for every seed of training."""


def prepare_sample(config: StudyConfig) -> StudyConfig:
    """Make what is missing in ``<out>/sample`` and return the study with it filled in: its own settings come last.

    The base model is the untrained backbone; the benchmark is the sample library's implicit requests, under :data:`SAMPLE_BENCH`.
    """
    paths = DemoPaths(Path(config.out) / "sample")
    if not (paths.data / "manifest.json").is_file():
        write_sample_data(paths, SEED)
    if not (paths.untrained / "modules.json").is_file():
        make_backbone(config.sample_library, paths, SEED)
    if config.sample_library == "small":
        from models.smollm2 import fetch_smollm2

        config.base_model = config.base_model or str(fetch_smollm2(layers=4))
    config.base_model = config.base_model or str(paths.backbone)
    for stage, records in ((config.stage1, "stage1.jsonl"), (config.grpo, "stage2.jsonl")):
        stage.set = [
            f"data.train_file={paths.data / records}",
            f"data.exclusions_file={paths.data / 'exclusions.json'}",
            f"validation.corpus_file={paths.corpus}",
            *stage.set,
        ]
    sample = config.benches.get(SAMPLE_BENCH, BenchSpec(label="Sample library"))
    sample.bench, sample.corpus = str(paths.bench), str(paths.corpus)
    config.benches = {SAMPLE_BENCH: sample, **config.benches}
    return config
