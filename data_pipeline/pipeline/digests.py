"""Content digests of files and folders: what a stage read and what it wrote."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from data_pipeline.ingest import skill_files


def artifact_digests(folder: Path, leave_out: str) -> dict[str, str]:
    """SHA-256 of every file below a folder, by its path in it, but for one name."""
    return {
        path.relative_to(folder).as_posix(): file_sha256(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != leave_out
    }


def current_digests(folder: Path, manifest: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the manifest's own artifacts as they are now; a missing one is left out."""
    return {name: file_sha256(folder / name) for name in manifest["artifacts"] if (folder / name).is_file()}


def input_digest(path: str, key: str) -> str:
    """An input by its content: a file, or every SKILL.md of a folder. A dataset of a hub is known by its name alone.

    Raises:
        FileNotFoundError: neither, with the configuration key that named it.
    """
    if path.startswith("hf:"):
        return path
    if Path(path).is_file():
        return file_sha256(Path(path))
    if Path(path).is_dir():
        return files_sha256(Path(path), skill_files(Path(path)))
    raise FileNotFoundError(f"{key}: {path}: no such file or folder")


def model_digest(model: str) -> str:
    """A local model folder by its weights and settings, a hub id by its name: a retrained model is another one."""
    folder = Path(model)
    if not model or not folder.is_dir():
        return model
    return files_sha256(
        folder, (p for p in folder.iterdir() if p.suffix in (".safetensors", ".json", ".model", ".txt"))
    )


def files_sha256(root: Path, files: Iterable[Path]) -> str:
    """One digest of the names and contents of files below ``root``, whatever the order they are given in."""
    digest = hashlib.sha256()
    for file in sorted(files):
        try:
            content = file_sha256(file) if file.is_file() else "no file"
        except OSError as error:  # ingestion drops such a file, and counts it
            content = f"cannot be read: {error.strerror}"
        digest.update(f"{file.relative_to(root).as_posix()}\0{content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, read in pieces."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
