"""The files of a SentenceTransformer: fetched, loaded without running any code of theirs, and listed for fingerprints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_FINGERPRINT_SUFFIXES = {".safetensors", ".json", ".txt", ".model"}
_HUB_PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.model"]
_NOT_THE_MODEL = {"retrieval.json"}
"""Files of an export that do not change an embedding; rewriting them must not empty the cache."""


def stored_similarity(folder: Path) -> str | None:
    """``similarity_fn_name`` of the model's files, None where they do not say."""
    path = folder / "config_sentence_transformers.json"
    return json.loads(path.read_text(encoding="utf-8")).get("similarity_fn_name") if path.is_file() else None


def download(hub_id: str) -> Path:
    """The hub's copy of a model, in its cache.

    Raises:
        FileNotFoundError: the hub has or reaches no such model, or it is no SentenceTransformer.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        # Safetensors only, and no Python: nothing that comes with a model is ever run.
        folder = Path(snapshot_download(hub_id, allow_patterns=_HUB_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise FileNotFoundError(
            f"{hub_id} is neither a folder here nor a model that the Hugging Face hub gave: {error}"
        ) from error
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"{hub_id}: the hub's model has no modules.json; expected a SentenceTransformer model")
    return folder


def load_sentence_transformer(folder: Path, dtype: str, device: str | None) -> SentenceTransformer:
    """Load from safetensors alone.

    Raises:
        FileNotFoundError: no ``modules.json``.
        ValueError: it cannot be loaded, or would need code of its own to be run.
    """
    if not (folder / "modules.json").is_file():
        raise FileNotFoundError(f"{folder}: no modules.json; expected a SentenceTransformer folder")
    import torch
    from sentence_transformers import SentenceTransformer
    from transformers.utils import logging as transformers_logging

    # A bar for the weights of one local model is noise in the output of a search.
    bar_was_shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model = SentenceTransformer(
            str(folder),
            device=device,
            trust_remote_code=False,
            local_files_only=True,
            model_kwargs={"use_safetensors": True, "dtype": getattr(torch, dtype)},
        )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise ValueError(f"{folder}: cannot be loaded as a SentenceTransformer model: {error}") from error
    finally:
        if bar_was_shown:
            transformers_logging.enable_progress_bar()
    return model.eval()


def model_files(folder: Path) -> list[Path]:
    """The files an embedding depends on, sorted: beside ``modules.json`` and in the folders that it lists."""
    modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    folders = {folder, *(folder / module["path"] for module in modules if module.get("path"))}
    files = (path for sub in folders if sub.is_dir() for path in sub.iterdir())
    return sorted(
        path
        for path in files
        if path.is_file() and path.suffix in _FINGERPRINT_SUFFIXES and path.name not in _NOT_THE_MODEL
    )
