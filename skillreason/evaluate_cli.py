"""The commands about retrieval and how good it is: ``skillreason evaluate | benchmark | compare | rescore | search``."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from skillreason.cluster_cli import example

evaluate_app = typer.Typer()

CacheDir = Annotated[
    Path | None, typer.Option(help="embedding cache (default: in $SKILLREASON_CACHE or ~/.cache/skillreason)")
]

Rerank = Annotated[
    str | None, typer.Option(help="reranker that reorders the first results: a run's folder, a model folder or hub id")
]
RerankDepth = Annotated[int, typer.Option(help="how many results it reorders")]

_PROMPTS = "Prompts of an embedding model"
_RATIONALES = "Requests with a rationale (Tables 3 and 9)"
QueryPrompt = Annotated[
    str | None,
    typer.Option(
        help="text before a request (\\n: a new line), or a name: one of the model's, skill or none (default: the model's own)",
        rich_help_panel=_PROMPTS,
    ),
]
DocumentPrompt = Annotated[str | None, typer.Option(help="the same before a document", rich_help_panel=_PROMPTS)]
Similarity = Annotated[
    str | None, typer.Option(help="cosine or dot (default: as the model says)", rich_help_panel=_PROMPTS)
]
AugmentSource = Annotated[
    str | None,
    typer.Option(
        "--augment", help="who writes them: self (the model's own LM) or teacher", rich_help_panel=_RATIONALES
    ),
]
AugmentModel = Annotated[
    str | None,
    typer.Option(
        help="LM that writes for --augment self (default: the one beside --model)", rich_help_panel=_RATIONALES
    ),
]


@evaluate_app.command(
    epilog=example(
        "skillreason evaluate --model runs/mine/export --corpus corpus.jsonl --bench bench.jsonl --out out.json"
    )
)
def evaluate(
    model: Annotated[str, typer.Option(help="model folder or hub id, bm25, or hybrid:FOLDER")],
    bench: Annotated[
        str, typer.Option(help="bench file (JSONL), benchmark folder, NAME, NAME=FOLDER or hf:owner/name[@revision]")
    ],
    out: Annotated[Path, typer.Option(help="JSON with metrics and the top 100 of every request")],
    corpus: Annotated[Path | None, typer.Option(help="skills of a bench file (JSONL, plain or gzipped)")] = None,
    split: Annotated[str | None, typer.Option(help="part of a benchmark: a split, suite or pool (easy, hard)")] = None,
    alternatives: Annotated[
        Path | None, typer.Option(help="decisions of skillreason data alternatives: recall with them, too")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of recall by length, domain and shared words")] = None,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens kept of an input (default: the model's)")] = None,
    rerank: Rerank = None,
    rerank_depth: RerankDepth = 20,
    cache_dir: CacheDir = None,
    query_prompt: QueryPrompt = None,
    document_prompt: DocumentPrompt = None,
    similarity: Similarity = None,
    augment: AugmentSource = None,
    rationales: Annotated[
        Path | None, typer.Option(help="rows of query_id and rationale to use", rich_help_panel=_RATIONALES)
    ] = None,
    augment_model: AugmentModel = None,
    samples: Annotated[int, typer.Option(help="rationales of a request", rich_help_panel=_RATIONALES)] = 1,
    temperature: Annotated[float, typer.Option(help="of sampling; 0: greedy", rich_help_panel=_RATIONALES)] = 0.0,
    teacher: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="such as kind=openai, model=NAME (repeatable)", rich_help_panel=_RATIONALES
        ),
    ] = None,
    teacher_config: Annotated[Path | None, typer.Option(help="YAML of these", rich_help_panel=_RATIONALES)] = None,
    teacher_cache: Annotated[
        Path | None,
        typer.Option(help="folder of its answers (default: .teacher beside --out)", rich_help_panel=_RATIONALES),
    ] = None,
) -> None:
    """Rank every request of a benchmark against its skills; print the metrics with 95% intervals, by suite and by slice."""
    from evaluation import evaluate as run_evaluate
    from evaluation.rationales import Augment

    chosen = None
    if augment is not None or rationales is not None:
        if augment is not None and rationales is not None:
            raise ValueError(f"--augment {augment} and --rationales {rationales} were given; expected one of them")
        if augment == "file":
            raise ValueError("--augment is file; expected self or teacher, or --rationales FILE alone")
        chosen = Augment(
            augment or "file",
            model=augment_model or "",
            file=str(rationales or ""),
            samples=samples,
            temperature=temperature,
            teacher_cache=str(teacher_cache or ""),
            **_teacher(teacher, teacher_config) if augment == "teacher" else {},
        )
        chosen.check()
    elif augment_model or teacher or teacher_config or samples != 1:
        raise ValueError(
            "options of rationales were given without --augment or --rationales; expected one of these too"
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same sentences are printed below, as notes
        result = run_evaluate(
            model,
            corpus,
            bench,
            out,
            cache_dir=cache_dir,
            max_length=max_length,
            fusion_weight=fusion_weight,
            split=split,
            alternatives=alternatives,
            rerank=rerank,
            rerank_depth=rerank_depth,
            query_prompt=_unescaped(query_prompt),
            document_prompt=_unescaped(document_prompt),
            similarity=similarity,
            augment=chosen,
            progress=True,
        )
    from skillreason.result_text import print_result

    print_result(result)
    if plot is not None and "slices" in result:
        from evaluation.result_plots import plot_slices

        metric = max(result["intervals"]["metrics"], key=lambda name: (name.startswith("recall@"), len(name), name))
        title = f"{model} on {result['benchmark']['name']}"
        print(f"plot: {plot_slices(result['slices'], plot, metric, title)}")


@evaluate_app.command(epilog=example("skillreason benchmark skillret --out data/skillret"))
def benchmark(
    bench: Annotated[str, typer.Argument(help="benchmark folder, NAME, NAME=FOLDER or hf:owner/name[@revision]")],
    split: Annotated[str | None, typer.Option(help="part of a benchmark: a split, suite or pool (easy, hard)")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for corpus.jsonl.gz and bench.jsonl")] = None,
) -> None:
    """Load a benchmark, say what it holds and which counts differ from the published ones; write it in our own format."""
    from evaluation.benchmarks import load_benchmark, save_benchmark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the same sentences are printed below, as notes
        loaded = load_benchmark(bench, split=split)
    print(f"{loaded.name}: {len(loaded.queries)} requests, {len(loaded.corpus)} skills; {loaded.protocol.description}")
    for suite, query_ids in loaded.suite_queries().items():
        print(f"  {suite:<14} {len(query_ids)}")
    for note in loaded.notes:
        logging.getLogger("skillreason").warning(note)
    if out is not None:
        print(f"written to {save_benchmark(loaded, out)}")


@evaluate_app.command(epilog=example("skillreason compare bm25.json stage2.json --plot difference.png"))
def compare(
    first: Annotated[Path, typer.Argument(help="result of skillreason evaluate: system A")],
    second: Annotated[Path, typer.Argument(help="result on the same benchmark: system B")],
    metric: Annotated[list[str] | None, typer.Option(help="compare this metric (repeatable)")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON of the comparison")] = None,
    plot: Annotated[Path | None, typer.Option(help="PNG of the differences")] = None,
) -> None:
    """Compare two systems query by query: differences with 95% intervals and paired randomization tests."""
    from evaluation.compare import compare as run_compare
    from evaluation.compare import comparison_table

    comparison = run_compare(first, second, metric)
    print(comparison_table(comparison))
    if out is not None:
        from models.folders import write_json

        write_json(out, comparison)
    if plot is not None:
        from evaluation.result_plots import plot_comparison

        print(f"plot: {plot_comparison(comparison, plot)}")


@evaluate_app.command(epilog=example("skillreason rescore bm25.json stage2.json --alternatives alternatives.jsonl"))
def rescore(
    results: Annotated[list[Path], typer.Argument(help="results of skillreason evaluate on one benchmark")],
    alternatives: Annotated[Path, typer.Option(help="decisions of skillreason data alternatives")],
    depth: Annotated[list[int] | None, typer.Option(help="cutoff of recall (repeatable; default: 1 and 5)")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON of the rescored recall")] = None,
) -> None:
    """Recall when validated alternatives count as well, each target at most once (Tables 7 and 8)."""
    from evaluation.alternatives import DEPTHS, read_alternatives, rescoring_table
    from evaluation.alternatives import rescore as run_rescore
    from evaluation.results import read_result

    validated = read_alternatives(alternatives)
    rescored: dict[str, Any] = {}
    for path in results:
        result = read_result(path)
        name = result.model if result.model not in rescored else str(path)
        rescored[name] = run_rescore(result, validated, depth or DEPTHS)
    print(rescoring_table(rescored))
    for name, value in rescored.items():
        print(f"{name}: {value['valid']} validated alternatives listed, {value['unjudged']} skills that nobody judged")
    if out is not None:
        from models.folders import write_json

        write_json(out, rescored)


@evaluate_app.command(
    epilog=example(
        'skillreason search --model runs/demo/export --corpus corpus.jsonl "our checkout test fails now and then"'
    )
)
def search(
    request: Annotated[str, typer.Argument(help="what you want done, in your words")],
    model: Annotated[str, typer.Option(help="model folder or hub id, bm25, or hybrid:FOLDER")],
    corpus: Annotated[Path, typer.Option(help="skills (JSONL, plain or gzipped)")],
    k: Annotated[int, typer.Option("--k", "-k", help="skills to show")] = 10,
    hybrid: Annotated[bool, typer.Option("--hybrid", help="fuse with BM25")] = False,
    fusion_weight: Annotated[float | None, typer.Option(help="weight of the dense list in a hybrid")] = None,
    rerank: Rerank = None,
    rerank_depth: RerankDepth = 20,
    cache_dir: CacheDir = None,
    query_prompt: QueryPrompt = None,
    document_prompt: DocumentPrompt = None,
    similarity: Similarity = None,
    augment: AugmentSource = None,
    augment_model: AugmentModel = None,
) -> None:
    """Print the skills that fit a request, best first, with their scores."""
    from evaluation import search as run_search
    from evaluation.rationales import Augment

    if augment not in (None, "self"):
        raise ValueError(f"--augment is {augment!r}; expected self: a search asks nobody else")
    hits = run_search(
        model,
        corpus,
        request,
        k,
        hybrid,
        cache_dir,
        fusion_weight=fusion_weight,
        rerank=rerank,
        rerank_depth=rerank_depth,
        query_prompt=_unescaped(query_prompt),
        document_prompt=_unescaped(document_prompt),
        similarity=similarity,
        augment=Augment("self", model=augment_model or "") if augment else None,
        progress=True,
    )
    for rank, hit in enumerate(hits, start=1):
        print(f"{rank:>3}  {hit.score:7.4f}  {hit.skill_id}\n              {_shorten(hit.description)}")


def _unescaped(prompt: str | None) -> str | None:
    """Shells hand over ``\\n`` as two characters, and instructions have a new line in them."""
    return None if prompt is None else prompt.replace("\\n", "\n")


def _teacher(keys: list[str] | None, config: Path | None) -> dict[str, Any]:
    from configs.load import load_config
    from data_pipeline.teacher import TeacherConfig, validate_teacher

    return {"teacher": load_config(TeacherConfig, config, keys or [], check=validate_teacher)}


def _shorten(text: str, width: int = 100) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
