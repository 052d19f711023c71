"""What a result depends on, as its file says it: so that a grid or a study knows which of its cells are done."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from evaluation.rationale_writers import causal_lm_of, model_digest
from evaluation.rationales import Augment
from retrieval.retriever import read_fusion_weight, split_model_spec


def result_settings(
    model: str, bench: str, *, augment: Augment | None = None, rerank: str | None = None, **options: Any
) -> dict[str, Any]:
    """Every argument of an evaluation that is not at its default, and digests of the local files it reads.

    Args:
        options: further arguments of :func:`evaluation.run.evaluate` by name; None is left out.
    """
    settings: dict[str, Any] = {"model": model, "bench": bench}
    settings |= {name: value for name, value in options.items() if value is not None}
    files = {"bench": bench, "corpus": options.get("corpus"), "alternatives": options.get("alternatives")}
    digests = {name: digest for name, file in files.items() if file and (digest := _file_digest(str(file)))}
    kind, path = split_model_spec(model)
    if kind != "bm25":
        digests["model"] = _encoder_digest(path)
    if kind == "hybrid" and options.get("fusion_weight") is None:
        from models.encoder import resolve_encoder_folder

        settings["fusion_weight"] = read_fusion_weight(resolve_encoder_folder(path))
    if rerank is not None:
        settings["rerank"] = rerank
        export = Path(rerank).expanduser() / "export"
        digests["rerank"] = model_digest(str(export if (export / "config.json").is_file() else rerank))
    if augment is not None:
        settings["augment"] = augment.to_dict()
        if augment.source == "self":
            digests["augment"] = model_digest(causal_lm_of(model, augment.model))
        elif augment.source == "file":
            digests["augment"] = _file_digest(augment.file)
    settings["digests"] = digests
    return json.loads(json.dumps(settings))  # as it is read again: tuples are lists


def is_current(path: str | Path, settings: dict[str, Any]) -> bool:
    """Whether ``path`` holds the result of exactly these settings."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8")).get("settings") == settings
    except (FileNotFoundError, ValueError, AttributeError):
        return False


def _encoder_digest(path: str) -> str:
    from models.encoder import resolve_encoder_folder
    from models.encoder_files import model_files

    digest = hashlib.sha256()
    for file in model_files(resolve_encoder_folder(path)):
        digest.update(file.name.encode() + bytes.fromhex(_sha256(file)))
    return digest.hexdigest()[:16]


def _file_digest(file: str) -> str:
    return _sha256(Path(file))[:16] if Path(file).is_file() else ""


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
