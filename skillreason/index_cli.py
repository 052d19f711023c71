"""``skillreason index``: build the index of a library, keep it up to date, and see what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skillreason.evaluate_cli import DocumentPrompt, QueryPrompt, Similarity

if TYPE_CHECKING:
    from serving.index import IndexInfo
    from serving.index_build import Built
    from serving.index_plan import UpdatePlan
    from serving.index_update import Updated

index_app = typer.Typer(
    help="The index of a library: build it, keep it up to date, look into it.", no_args_is_help=True
)

Skills = Annotated[
    list[str] | None,
    typer.Option(help="folder of SKILL.md files, or whatever ingest takes (repeatable); cleaned as ingest does"),
]
CacheDir = Annotated[Path | None, typer.Option(help="where embeddings are kept (default: the user's cache folder)")]
Device = Annotated[str | None, typer.Option(help="torch device of the model (default: the GPU where there is one)")]
BatchSize = Annotated[int, typer.Option(help="documents encoded at once")]
Keep = Annotated[int, typer.Option(help="versions to keep, the new one included; at least 2")]
Wait = Annotated[float, typer.Option(help="seconds to wait for another process that writes to this index")]
_SHOWN = 20


def _example(text: str) -> str:
    return f"[bold]Example:[/bold] {text}"


@index_app.command(
    epilog=_example("skillreason index build --model runs/mine/export --corpus corpus.jsonl --out library.index")
)
def build(
    model: Annotated[str, typer.Option(help="model folder or hub id, bm25, or hybrid:FOLDER")],
    out: Annotated[Path, typer.Option(help="folder of the index; an index that is there gets a new version")],
    corpus: Annotated[Path | None, typer.Option(help="skills (JSONL, plain or gzipped, or Parquet)")] = None,
    skills: Skills = None,
    kind: Annotated[str, typer.Option(help="vector search: auto, flat (exact), ivf or hnsw (approximate)")] = "auto",
    fusion_weight: Annotated[
        float | None, typer.Option(help="weight of the dense list in a hybrid (default: the model's own)")
    ] = None,
    reranker: Annotated[str | None, typer.Option(help="reranker to open with the index: folder or hub id")] = None,
    max_length: Annotated[int | None, typer.Option(help="tokens kept of an input (default: the model's)")] = None,
    dtype: Annotated[str | None, typer.Option(help="precision of the model: float32, bfloat16 or float16")] = None,
    query_prompt: QueryPrompt = None,
    document_prompt: DocumentPrompt = None,
    similarity: Similarity = None,
    device: Device = None,
    batch_size: BatchSize = 32,
    cache_dir: CacheDir = None,
    keep: Keep = 3,
    wait: Wait = 0.0,
) -> None:
    """Encode a library once and write it as an index; the same command after a kill goes on where it was."""
    from serving.index_build import build_index
    from serving.index_plan import read_library

    library = read_library(skills or (), corpus)
    if library.dropped:
        print(f"{len(library.dropped)} records dropped; skillreason ingest writes a report of them")
    built = build_index(
        out,
        library.skills,
        model,
        kind=kind,
        fusion_weight=fusion_weight,
        reranker=reranker,
        max_length=max_length,
        dtype=dtype,
        query_prompt=query_prompt,
        document_prompt=document_prompt,
        similarity=similarity,
        device=device,
        cache_dir=cache_dir,
        batch_size=batch_size,
        keep=keep,
        wait=wait,
        source=library.source,
        progress=True,
    )
    print(f"{out}: {_written(built)}")


@index_app.command(epilog=_example("skillreason index update --index library.index --skills ~/skills --dry-run"))
def update(
    index: Annotated[Path, typer.Option(help="folder of the index")],
    skills: Skills = None,
    corpus: Annotated[Path | None, typer.Option(help="the whole library as a corpus file, instead of folders")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="say what would be done, and do nothing")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="go on: update whenever the files change")] = False,
    interval: Annotated[float, typer.Option(help="with --watch: seconds between looks at the files")] = 5.0,
    allow_removals: Annotated[
        bool, typer.Option("--allow-removals", help="remove more than half of the index where the library says so")
    ] = False,
    model: Annotated[str | None, typer.Option(help="where the index's model is now, if it was moved")] = None,
    device: Device = None,
    batch_size: BatchSize = 32,
    cache_dir: CacheDir = None,
    keep: Keep = 3,
    wait: Wait = 0.0,
) -> None:
    """Bring an index up to date with its library; only what is new or changed is encoded."""
    from serving.index_update import IndexUpdater

    if watch and (dry_run or allow_removals):
        raise ValueError("--watch goes with neither --dry-run nor --allow-removals; give these to a call of its own")
    updater = IndexUpdater(
        index,
        skills or (),
        corpus=corpus,
        model=model,
        device=device,
        cache_dir=cache_dir,
        batch_size=batch_size,
        keep=keep,
        wait=wait,
        progress=True,
    )
    if not watch:
        _print_update(updater.update(dry_run=dry_run, allow_removals=allow_removals), dry_run)
        return
    import logging

    logger = logging.getLogger("skillreason")
    print(f"watching every {interval:g} s; Ctrl-C ends it", flush=True)
    updater.watch(interval, _print_update, lambda error: logger.error("not updated: %s", error))


@index_app.command(epilog=_example("skillreason index info library.index --verify"))
def info(
    index: Annotated[Path, typer.Argument(help="folder of the index")],
    verify: Annotated[
        bool, typer.Option("--verify", help="read every file, load the model, encode some skills again and compare")
    ] = False,
    model: Annotated[str | None, typer.Option(help="with --verify: where the model is now, if it was moved")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print it as JSON")] = False,
) -> None:
    """What an index holds: skills, model, kind of search, domains and versions."""
    from serving.index import read_info
    from serving.versions import list_versions

    found = read_info(index)
    if as_json:
        import dataclasses
        import json

        print(json.dumps(dataclasses.asdict(found), ensure_ascii=False, indent=2))
    else:
        _print_info(found, list_versions(index))
    if verify:
        from serving.index_verify import verify_index

        typer.echo(verify_index(index, model=model), err=as_json)


def _print_info(found: IndexInfo, versions: list[str]) -> None:
    rows = [
        ("version", f"{found.version}, built {found.built_at}; {len(versions)} kept"),
        ("skills", f"{found.n_skills:,}"),
        ("model", "BM25 alone" if found.model is None else f"{found.model} ({str(found.fingerprint)[:12]})"),
        ("documents", f"format {found.document_format}"),
        ("vectors", _vectors(found)),
        ("hybrid", "no fusion weight" if found.fusion_weight is None else f"fusion weight {found.fusion_weight:g}"),
        ("reranker", found.reranker or "none"),
        ("source", ", ".join(found.source) or "not recorded"),
        ("built with", ", ".join(f"{name} {number}" for name, number in found.tools.items())),
    ]
    for name, value in rows:
        print(f"{name:<11} {value}")
    without = found.n_skills - sum(found.domains.values())
    domains = sorted(found.domains.items(), key=lambda item: (-item[1], item[0]))
    print(f"{'domains':<11} {len(domains)}" + (f"; {without:,} of the skills have none" if without else ""))
    for name, count in domains[:_SHOWN]:
        print(f"  {count:>7,}  {name}")
    if len(domains) > _SHOWN:
        print(f"           and {len(domains) - _SHOWN} more")


def _vectors(found: IndexInfo) -> str:
    if found.kind is None:
        return "none"
    how = found.vectors
    shown = f"{found.dimension} components, {found.kind}" + (" (exact)" if found.kind == "flat" else "")
    if "recall" in how:
        sizes = ", ".join(f"{name} {value}" for name, value in how["parameters"].items())
        shown += f"; {how['kind']} ({sizes}) has recall@{how['recall_k']} {how['recall']:.3f} against exact search"
    return shown


def _print_update(updated: Updated, dry_run: bool = False) -> None:
    if updated.plan.empty and not updated.plan.dropped:
        print("up to date", flush=True)
        return
    _print_plan(updated.plan)
    if updated.built is not None:
        print(_written(updated.built), flush=True)
    elif updated.plan.empty:
        print("up to date", flush=True)
    elif dry_run:
        print("nothing was written (--dry-run)")


def _print_plan(plan: UpdatePlan) -> None:
    for sign, what, ids in (("+", "added", plan.added), ("~", "changed", plan.changed), ("-", "removed", plan.removed)):
        print(f"{len(ids)} {what}")
        for skill_id in ids[:_SHOWN]:
            print(f"  {sign} {skill_id}")
        if len(ids) > _SHOWN:
            print(f"    and {len(ids) - _SHOWN} more")
    for record in plan.broken[:_SHOWN]:
        print(f"  ! {record.skill_id} stays as it is indexed: {record.file}: {record.detail}")
    for record in plan.unusable[:_SHOWN]:
        print(f"  ! not usable, {record.reason}: {record.file}: {record.detail}")
    others = {reason: count for reason, count in plan.dropped.items() if count}
    if others:
        print("not usable: " + ", ".join(f"{reason} {count}" for reason, count in sorted(others.items())))
    if plan.outdated:
        print(
            f"{len(plan.outdated)} changed skills had an index_text that no longer fits; skillreason skill2query augment makes it"
        )


def _written(built: Built) -> str:
    encoded = f", {built.encoded} encoded, {built.reused} already known" if built.info.model is not None else ""
    return f"version {built.info.version} with {built.info.n_skills} skills{encoded}"
