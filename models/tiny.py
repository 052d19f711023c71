"""A tiny Qwen3-architecture backbone, made from a config and a library's own text, for laptops and tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from models.folders import atomic_folder

POOLING_TOKEN = "<|endoftext|>"  # as in Qwen3-Embedding, where it also pads
END_TOKEN = "<|im_end|>"


@dataclass
class TinyConfig:
    """Shape of the tiny backbone; the defaults give 1.8 million parameters, most of them embeddings.

    One wide layer learns a small library faster, update for update and second for second, than two narrow ones.
    """

    vocab_size: int = 8000
    hidden_size: int = 192
    intermediate_size: int = 256
    num_layers: int = 1
    num_heads: int = 6
    num_key_value_heads: int = 3
    head_dim: int = 32
    max_position_embeddings: int = 4096
    initializer_range: float = (
        0.0  # 0: hidden_size ** -0.5; Qwen3's 0.02 suits a width of 2,500 and mutes narrow layers
    )
    seed: int = 0


def create_tiny(texts: Iterable[str], out: str | Path, config: TinyConfig | None = None) -> Path:
    """Train a byte-level BPE tokenizer on ``texts`` and write a randomly initialized Qwen3 causal LM folder to ``out``.

    The same texts and config give the same folder. An existing ``out`` is replaced.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    config = config or TinyConfig()
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=config.vocab_size,
            special_tokens=[POOLING_TOKEN, END_TOKEN],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    pooling_id = bpe.token_to_id(POOLING_TOKEN)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"$A {POOLING_TOKEN}", special_tokens=[(POOLING_TOKEN, pooling_id)]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END_TOKEN, pad_token=POOLING_TOKEN)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_hidden_layers=config.num_layers,
                num_attention_heads=config.num_heads,
                num_key_value_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
                initializer_range=config.initializer_range or config.hidden_size**-0.5,
                max_position_embeddings=config.max_position_embeddings,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=bpe.token_to_id(END_TOKEN),
                # no pad_token_id: the pooling token pads too, and a padding_idx would never get a gradient
            )
        )
        # From zero, the untrained embedding is what attention gathered, not the pooling token's own random vector.
        torch.nn.init.zeros_(model.get_parameter("model.embed_tokens.weight").data[pooling_id])
    model.config.pooling_token_id = pooling_id
    model.config.rationale_prompt = "short"
    with atomic_folder(out) as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return Path(out)
