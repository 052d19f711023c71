"""``skillreason skill2query augment | training | groups | evaluate``: the three uses of pseudo-queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillreason.skill2query_cli import app

if TYPE_CHECKING:
    from data_pipeline import SkillCorpus
    from data_pipeline.skill2query.pseudo_query import PseudoQuery

Corpus = Annotated[Path, typer.Argument(help="skills (JSONL, plain or gzipped)")]
Queries = Annotated[Path, typer.Option(help="pseudo-queries that skill2query generate wrote")]


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


def _of_these_skills(found: list[PseudoQuery], skills: SkillCorpus, file: Path) -> list[PseudoQuery]:
    """The pseudo-queries of skills that the corpus has; the others are counted aloud. ValueError where none is left."""
    kept = [query for query in found if query.skill_id in skills]
    if not kept:
        raise ValueError(
            f"{file}: none of its {len(found)} pseudo-queries is of one of the corpus's {len(skills)} skills"
        )
    if len(kept) < len(found):
        missing = next(query.skill_id for query in found if query.skill_id not in skills)
        print(f"{len(found) - len(kept)} pseudo-queries left out: the corpus lacks their skills, such as {missing!r}")
    return kept


@app.command(
    epilog=_example("skillreason skill2query augment corpus.jsonl --queries queries.jsonl --out augmented.jsonl")
)
def augment(
    corpus: Corpus,
    queries: Queries,
    out: Annotated[Path, typer.Option(help="corpus to write (.jsonl or .jsonl.gz)")],
    config: Annotated[str, typer.Option(help="what is indexed: name, name_description or full")] = "full",
    per_skill: Annotated[int, typer.Option(help="most pseudo-queries a skill")] = 10,
    placement: Annotated[
        str, typer.Option(help="before_body (seen by encoders that cut long texts) or append (as in the paper)")
    ] = "before_body",
    model: Annotated[
        str, typer.Option(help="model whose document format the text gets (default: E.1's format)")
    ] = "bm25",
) -> None:
    """Write a corpus whose indexed text has pseudo-queries in it; every command takes it in place of the plain one."""
    from data_pipeline import SkillCorpus
    from data_pipeline.skill2query.augment import augment_corpus
    from data_pipeline.skill2query.pseudo_query import read_pseudo_queries
    from retrieval.retriever import document_format

    skills = SkillCorpus.from_jsonl(corpus)
    found = _of_these_skills(read_pseudo_queries(queries), skills, queries)
    augmented = augment_corpus(skills, found, config, per_skill, placement, document_format(model))
    augmented.to_jsonl(out)
    with_queries = len({query.skill_id for query in found})
    print(f"{len(augmented)} skills in {out}; {with_queries} of them have pseudo-queries")


@app.command(
    epilog=_example("skillreason skill2query training corpus.jsonl --queries queries.jsonl --out requests.jsonl")
)
def training(
    corpus: Corpus,
    queries: Queries,
    out: Annotated[Path, typer.Option(help="training requests for skillreason records (JSONL)")],
    implicit: Annotated[bool, typer.Option(help="add implicit rewrites by rule, which Stage II needs")] = True,
    seed: Annotated[int, typer.Option(help="seed of the draw of template and query")] = 42,
) -> None:
    """Draw one template a skill and one of its pseudo-queries (C.1.1) as a training request."""
    from data_pipeline import SkillCorpus
    from data_pipeline.records import write_records
    from data_pipeline.skill2query.pseudo_query import read_pseudo_queries
    from data_pipeline.skill2query.training import training_requests
    from data_pipeline.skill2query.writer import GraphWriter

    skills = SkillCorpus.from_jsonl(corpus)
    found = _of_these_skills(read_pseudo_queries(queries), skills, queries)
    made = training_requests(found, skills, GraphWriter() if implicit else None, seed)
    write_records(out, made)
    print(f"{len(made)} requests for {len(skills)} skills in {out}")


@app.command(
    epilog=_example(
        "skillreason skill2query groups corpus.jsonl --requests requests.jsonl --model runs/mine/export --out groups.jsonl"
    )
)
def groups(
    corpus: Corpus,
    requests: Annotated[Path, typer.Option(help="what skill2query training wrote")],
    model: Annotated[str, typer.Option(help="the trained retriever: model folder, bm25, or hybrid:FOLDER")],
    out: Annotated[Path, typer.Option(help="candidate groups (JSONL)")],
    top: Annotated[int, typer.Option(help="records retrieved")] = 200,
    size: Annotated[int, typer.Option(help="candidates of a group")] = 10,
    cache_dir: Annotated[Path | None, typer.Option(help="embedding cache")] = None,
) -> None:
    """Candidate groups for a reranker (C.1.2): the retriever's best ten, with the positive among them."""
    from data_pipeline import SkillCorpus, read_training_requests
    from data_pipeline.rows import write_rows
    from data_pipeline.skill2query.training import reranker_groups
    from retrieval.retriever import document_format, open_retriever

    skills = SkillCorpus.from_jsonl(corpus)
    texts = skills.documents(document_format(model))
    retriever = open_retriever(model, skills.ids, texts, cache_dir=cache_dir, progress=True)
    made = reranker_groups(read_training_requests(requests), retriever, skills, top, size)
    write_rows(out, made)
    print(f"{len(made)} groups of {size} candidates in {out}")


@app.command(
    epilog=_example(
        "skillreason skill2query evaluate corpus.jsonl --bench bench.jsonl --model bm25 --model runs/mine/export --out comparison"
    )
)
def evaluate(
    corpus: Corpus,
    bench: Annotated[list[Path], typer.Option(help="requests with skill_id, skill_ids or qrels (JSONL; repeatable)")],
    model: Annotated[list[str], typer.Option(help="bm25, model folder or hub id, or hybrid:FOLDER (repeatable)")],
    out: Annotated[Path, typer.Option(help="folder for comparison.json, comparison.md and comparison.png")],
    queries: Annotated[Path | None, typer.Option(help="pseudo-queries (default: made by rule from the corpus)")] = None,
    per_skill: Annotated[int, typer.Option(help="most pseudo-queries a skill in the augmented index")] = 10,
    placement: Annotated[str, typer.Option(help="before_body or append, see augment")] = "before_body",
    variants: Annotated[int, typer.Option(help="variants of a request for each seed skill")] = 3,
    seeds: Annotated[int, typer.Option(help="seed skills of a request")] = 1,
    max_length: Annotated[int | None, typer.Option(help="tokens kept of an input (default: the model's)")] = None,
    cache_dir: Annotated[Path | None, typer.Option(help="embedding cache")] = None,
) -> None:
    """Compare name, name + description and full indexes: plain, with augmented index, and with expanded queries."""
    from dataclasses import asdict

    from data_pipeline import SkillCorpus, read_bench
    from data_pipeline.skill2query.expand import seeds_of
    from data_pipeline.skill2query.generation import GenerationConfig, generate
    from data_pipeline.skill2query.parsing import parse_skill
    from data_pipeline.skill2query.pseudo_query import read_pseudo_queries
    from evaluation.skill2query import Settings, compare, comparison_table, plot_comparison, write_table
    from models.folders import write_json

    skills = SkillCorpus.from_jsonl(corpus)
    benches = {path.name.split(".")[0]: read_bench(path) for path in bench}
    if len(benches) < len(bench):
        raise ValueError(f"two of {', '.join(map(str, bench))} have one name; expected different ones for the table")
    found = read_pseudo_queries(queries) if queries else list(generate(skills, GenerationConfig(), progress=True))
    seed = seeds_of((parse_skill(skill) for skill in skills), found)
    settings = Settings(per_skill, placement, variants, seeds)
    rows = compare(
        skills, benches, model, found, seed.get, settings, cache_dir=cache_dir, max_length=max_length, progress=True
    )
    write_json(out / "comparison.json", {"settings": asdict(settings), "rows": [asdict(row) for row in rows]})
    write_table(out / "comparison.md", rows)
    plot_comparison(rows, out / "comparison.png")
    print(comparison_table(rows))
