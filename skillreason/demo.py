"""The main job on the embedded sample library, from SKILL.md files to answered requests."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs import GrpoConfig, Stage1Config, load_config
from data_pipeline import (
    BenchQuery,
    BuiltRecords,
    SkillCorpus,
    TrainingRequest,
    build_records,
    read_stage1,
    write_records,
    write_records_folder,
)
from data_pipeline.sample_library import load_sample_corpus, load_sample_requests
from data_pipeline.self_requests import add_self_requests
from models.folders import atomic_write_text

BACKBONES = ("tiny", "small")
MARKER = "demo.json"

EXAMPLE_REQUESTS = (
    "Half of our checkout tests go red on Monday and green on Tuesday with nothing changed; tell me which ones to trust",
    "Are we going to have enough cash to make payroll in each of the coming weeks?",
    "People complain that the voices in our podcast disappear whenever the background tune comes in",
)


def run_demo(out: Path, backbone: str = "tiny", seed: int = 42) -> dict[str, Any]:
    """Run every step that is not done yet and return the contents of ``results.json``.

    ``out`` gets config.yaml, metrics.jsonl, checkpoints/, export/, report.md, results.json and plots/ of the whole job; the two
    training runs keep theirs in stage1/ and stage2/. An interrupted demo goes on where it was; a finished one is run anew.

    Raises:
        ValueError: unknown backbone, or ``out`` holds something that is no demo.
    """
    if backbone not in BACKBONES:
        raise ValueError(f"--backbone is {backbone!r}; expected one of {', '.join(BACKBONES)}")
    _prepare_folder(out, {"backbone": backbone, "seed": seed})
    started = time.perf_counter()
    paths = DemoPaths(out)

    with _step("1/6 training records from the sample library"):
        corpus, requests, built, bench = write_sample_data(paths, seed)
        print(
            f"{len(corpus)} skills, {len(requests)} written requests, {len(built.stage1)} Stage-I and "
            f"{len(built.stage2)} Stage-II records, {len(bench)} test requests"
        )
    with _step(f"2/6 the {backbone} backbone, untrained"):
        source = make_backbone(backbone, paths, seed)
    stage1 = load_config(Stage1Config, f"stage1_{backbone}", _overrides(paths, "stage1", source, seed))
    with _step("3/6 Stage I: learning from the teacher's reasoning"):
        from trainers.stage1 import train_stage1

        first = train_stage1(stage1)
    grpo = load_config(GrpoConfig, f"grpo_{backbone}", _overrides(paths, "stage2", first.causal_lm, seed))
    with _step("4/6 Stage II: retrieval-guided GRPO on Ray actors"):
        from trainers.grpo import train_grpo

        second = train_grpo(grpo)
    with _step("5/6 evaluation and export"):
        systems = _evaluate(paths, first.export, second.export)
        results = _write_results(paths, systems, stage1, grpo)
        shutil.copytree(second.export, paths.export, dirs_exist_ok=True)
    with _step("6/6 three searches"):
        _searches(paths)

    from evaluation.report import format_table

    print(f"\n{format_table(results['systems'], results['reward'])}\n")
    print(f"{time.perf_counter() - started:.0f} s. Report: {out / 'report.md'}; retriever: {paths.export}")
    print(f'Ask it: skillreason search --model {paths.export} --corpus {paths.corpus} "what you want done"')
    return results


class DemoPaths:
    """Where the demo keeps what."""

    def __init__(self, out: Path):
        self.out = out
        self.data = out / "data"
        self.corpus = self.data / "corpus.jsonl"
        self.bench = self.data / "bench.jsonl"
        self.backbone = out / "backbone"
        self.untrained = out / "untrained"
        self.export = out / "export"
        self.plots = out / "plots"
        self.cache = out / "cache"


@contextmanager
def _step(title: str) -> Iterator[None]:
    print(f"\n== {title}", flush=True)
    start = time.perf_counter()
    yield
    print(f"   {time.perf_counter() - start:.0f} s", flush=True)


def _prepare_folder(out: Path, settings: dict[str, Any]) -> None:
    """Keep an unfinished demo with the same settings; clear a finished or different one; touch nothing else."""
    marker = out / MARKER
    if out.exists() and any(out.iterdir()) and not marker.is_file():
        raise ValueError(f"{out} is not empty and holds no demo; give another --out")
    if marker.is_file():
        unfinished = not (out / "results.json").is_file()
        if unfinished and json.loads(marker.read_text(encoding="utf-8")) == settings:
            print(f"going on with the unfinished demo in {out}")
        else:
            shutil.rmtree(out)
    atomic_write_text(marker, json.dumps(settings) + "\n")


def write_sample_data(
    paths: DemoPaths, seed: int
) -> tuple[SkillCorpus, list[TrainingRequest], BuiltRecords, list[BenchQuery]]:
    """Write corpus, test requests and the records of both stages of the sample library; returns them."""
    corpus = load_sample_corpus()
    requests, bench = load_sample_requests()
    corpus.to_jsonl(paths.corpus)
    write_records(paths.bench, bench)
    built = add_self_requests(build_records(requests, corpus, seed=seed), corpus, requests, seed, progress=True)
    write_records_folder(built, paths.data)
    return corpus, requests, built, bench


def make_backbone(backbone: str, paths: DemoPaths, seed: int) -> Path:
    """The causal LM that training begins with, and its untrained encoder in ``paths.untrained``; reads the sample data."""
    from models.backbone import Backbone
    from models.export import export_retriever

    if backbone == "small":
        from models.smollm2 import fetch_smollm2

        source = fetch_smollm2(layers=4)
    else:
        from models.tiny import TinyConfig, create_tiny

        source = paths.backbone
        if not source.exists():
            records = read_stage1(paths.data / "stage1.jsonl")
            texts = [*SkillCorpus.from_jsonl(paths.corpus).documents(), *(record.query for record in records)]
            create_tiny(texts, source, TinyConfig(seed=seed))
    loaded = Backbone.load(source)
    export_retriever(loaded, paths.untrained)
    print(f"{sum(p.numel() for p in loaded.parameters()) / 1e6:.1f} million parameters")
    return source


def _overrides(paths: DemoPaths, stage: str, model: Path, seed: int) -> list[str]:
    return [
        f"run.root={paths.out}",
        f"run.name={stage}",
        f"run.seed={seed}",
        f"run.checkpoints={paths.out / 'checkpoints' / stage}",
        f"model.path={model}",
        f"data.train_file={paths.data / f'{stage}.jsonl'}",
        f"data.exclusions_file={paths.data / 'exclusions.json'}",
        f"validation.corpus_file={paths.corpus}",
    ]


def _evaluate(paths: DemoPaths, stage1: Path, stage2: Path) -> dict[str, dict[str, float]]:
    from evaluation import evaluate

    specs = {
        "bm25": "bm25",
        "untrained": str(paths.untrained),
        "stage1": str(stage1),
        "stage2": str(stage2),
        "hybrid": f"hybrid:{stage2}",
    }
    systems = {}
    for name, spec in specs.items():
        file = paths.out / "evaluation" / f"{name}.json"
        systems[name] = evaluate(spec, paths.corpus, paths.bench, file, cache_dir=paths.cache)["metrics"]
    return systems


def _write_results(
    paths: DemoPaths, systems: dict[str, dict[str, float]], stage1: Stage1Config, grpo: GrpoConfig
) -> dict[str, Any]:
    from omegaconf import OmegaConf

    from evaluation.plots import plot_recall_by_stage
    from evaluation.report import write_report, write_results_json
    from trainers.tracking import read_metrics, reward_ends

    rows = {stage: read_metrics(paths.out / stage / "metrics.jsonl") for stage in ("stage1", "stage2")}
    merged = [json.dumps({"stage": stage, **row}) for stage, found in rows.items() for row in found]
    atomic_write_text(paths.out / "metrics.jsonl", "\n".join(merged) + "\n")
    config = {
        "stage1": OmegaConf.to_container(OmegaConf.structured(stage1)),
        "grpo": OmegaConf.to_container(OmegaConf.structured(grpo)),
    }
    atomic_write_text(paths.out / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(config)))
    plots = {
        "Losses of Stage I": paths.plots / "losses.png",
        "Rewards of Stage II": paths.plots / "rewards.png",
        "Policy of Stage II": paths.plots / "policy.png",
        "Recall by stage": paths.plots / "recall.png",
    }
    paths.plots.mkdir(exist_ok=True)
    shutil.copy(paths.out / "stage1" / "plots" / "losses.png", paths.plots)
    for name in ("rewards.png", "policy.png"):
        shutil.copy(paths.out / "stage2" / "plots" / name, paths.plots)
    plot_recall_by_stage(systems, paths.plots / "recall.png")
    reward = reward_ends(rows["stage2"])
    write_results_json(paths.out / "results.json", systems, reward)
    write_report(
        paths.out,
        title="SkillReason on the sample library",
        systems=systems,
        reward=reward,
        plots=plots,
        config=config,
        notes=[
            "Implicit test requests, one a skill, none used in training; every request is ranked against the whole library.",
            "hybrid fuses Stage II with BM25; its weight was chosen on held-out training requests.",
            "The reward at start and end is its mean over the first and the last quarter of the updates.",
        ],
    )
    return json.loads((paths.out / "results.json").read_text(encoding="utf-8"))


def _searches(paths: DemoPaths) -> None:
    from evaluation import search

    for request in EXAMPLE_REQUESTS:
        print(f"\n  {request}")
        for hit in search(paths.export, paths.corpus, request, k=3, hybrid=True, cache_dir=paths.cache):
            print(f"    {hit.score:.4f}  {hit.skill_id}")
