"""What a stage tells about itself in its folder, and whether a folder is a stage's at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
_MANIFEST_KEYS = {
    "artifacts": (dict, "mapping"),
    "counts": (dict, "mapping"),
    "rejected": (dict, "mapping"),
    "notes": (dict, "mapping"),
    "seconds": (int | float, "number"),
}


class PipelineError(ValueError):
    """A pipeline that cannot run; the message names the stage, file or key."""


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """The manifest of a stage's folder.

    Raises:
        PipelineError: there is none, or it is not the JSON that a pipeline writes.
    """
    file = Path(folder) / MANIFEST
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PipelineError(f"{file}: missing; run the stage first") from error
    except ValueError as error:
        raise PipelineError(f"{file}: not JSON ({error}); remove the folder to run the stage anew") from error
    for key, (kind, expected) in _MANIFEST_KEYS.items():
        if not isinstance(value, dict) or not isinstance(value.get(key), kind):
            raise PipelineError(
                f"{file}: {key} is no {expected}: not a stage's manifest, or one of another version; if the folder holds nothing "
                "of your own, remove it to run the stage anew"
            )
    return value


def refuse_foreign(folder: Path) -> None:
    """A stage's folder is replaced as a whole: what no stage has written must not vanish with it.

    Raises:
        PipelineError: a file, a folder with something in it and without a manifest, or one whose manifest is not a stage's.
    """
    if (folder / MANIFEST).is_file():
        read_manifest(folder)
    elif folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise PipelineError(
            f"{folder}: in the way, and without the manifest of a stage; expected nothing, or what data build has written: "
            "name another out, or move it away"
        )
