"""The shared backbone: one causal LM that encodes requests and documents and writes rationales.

The same parameters have two faces (eq. 1 and E.2 of the SkillReason paper): the L2-normalized hidden state of the
appended pooling token is the embedding, and the LM head over the same hidden states is the rationale policy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from models.batching import pad_right, plan_over_ranks, plan_packed
from models.shared_prefix import can_pack, pack, packed_hidden_states
from models.token_log_probs import TokenLogProbs
from models.tokenization import BackboneError, ModelTokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Backbone(nn.Module):
    """A Hugging Face causal LM with last-token pooling.

    Master weights are float32; ``compute_dtype`` bfloat16 runs the transformer under autocast, and hidden states are cast to
    float32 before normalization and before any softmax (see ``docs/numerics.md``).

    Attributes:
        model: the transformers causal LM.
        tokenizer: its token interface, with the pooling and stop ids.
        source: where it was loaded from.
        share_prefixes: what sequences of a pass begin with is computed once, where :attr:`packs` allows it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: ModelTokenizer,
        *,
        compute_dtype: torch.dtype = torch.float32,
        source: str = "",
        share_prefixes: bool = True,
    ):
        super().__init__()
        self.model = model
        self.tokenizer = tokenizer
        self.compute_dtype = compute_dtype
        self.source = source
        self.share_prefixes = share_prefixes
        self.token_log_probs = TokenLogProbs(model.get_output_embeddings())
        # The token that pads may be the one that pools, and an embedding's padding_idx gets no gradient. Masks keep padding out.
        model.get_input_embeddings().padding_idx = None

    @classmethod
    def load(cls, path: str | Path, *, dtype: str = "float32", device: str = "cpu", **settings: Any) -> Self:
        """Load a local folder or a hub id of any causal LM that transformers knows.

        Args:
            settings: what the initializer of a kind of backbone takes beside these.

        Raises:
            BackboneError: no such folder, no safetensors weights, or an untied checkpoint without ``lm_head.weight``.
        """
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM

        if dtype not in DTYPES:
            raise BackboneError(f"model.dtype is {dtype!r}; expected one of {sorted(DTYPES)}")
        source = str(path)
        tokenizer = ModelTokenizer.load(source)
        try:
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                source,
                dtype=torch.float32,
                trust_remote_code=False,
                use_safetensors=True,
                # straight to it, or each process of a node would hold a float32 copy on the CPU
                device_map={"": device},
                output_loading_info=True,
            )
        except (OSError, ValueError, SafetensorError) as error:
            raise BackboneError(f"{source}: cannot be loaded as a causal LM: {error}") from error
        model, info = loaded  # a pair, with output_loading_info
        missing = sorted(info["missing_keys"])
        if missing:
            raise BackboneError(
                f"{source}: weights are missing for {', '.join(missing[:3])}; an untied head or a layer would be initialized at "
                "random. Save the full causal LM, or set tie_word_embeddings in config.json if the head is tied"
            )
        for key in ("final_logit_softcapping", "logits_scaling", "logit_scale"):
            value = getattr(model.config.get_text_config(), key, None)
            if value not in (None, 1, 1.0):
                raise BackboneError(
                    f"{source}: {key} is {value} in config.json; architectures that rescale their logits are not supported: "
                    "log-probabilities are taken from the output embeddings alone"
                )
        model.config.use_cache = False
        return cls(model, tokenizer, compute_dtype=DTYPES[dtype], source=source, **settings)

    def forward(self, face: str, *args: Any) -> Any:
        """Call a face by its name, such as ``embed``: wrappers that shard a module act when it is called as a whole."""
        return getattr(self, face)(*args)

    # -- the encoder face -----------------------------------------------------------------------------------------------

    def hidden_states(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Final hidden states ``[B, T, d]`` in float32, for left- or right-padded input.

        Under a causal mask, right padding is invisible to the tokens before it, so right-padded batches run without an
        attention mask, which leaves attention kernels their fast causal path.
        """
        right_padded = bool((attention_mask[:, 1:] <= attention_mask[:, :-1]).all())
        if right_padded:
            mask, position_ids = None, None
        else:
            mask = attention_mask
            position_ids = (attention_mask.cumsum(-1) - 1).clamp(min=0)
        with self.autocast():
            output = self.model.base_model(
                input_ids=input_ids, attention_mask=mask, position_ids=position_ids, use_cache=False
            )
        return output.last_hidden_state.float()

    def embed(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Unit-length embeddings ``[B, d]`` in float32: the last real token's hidden state, L2-normalized (eq. 1)."""
        hidden = self.hidden_states(input_ids, attention_mask)
        positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
        last = (attention_mask * positions).argmax(dim=1)
        return F.normalize(hidden[torch.arange(len(hidden), device=hidden.device), last], dim=-1)

    def embed_sequences(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        """As :meth:`embed`, of sequences that nobody has padded, in their order."""
        states, rows = self.token_states(sequences)
        return F.normalize(states[[int(r[-1]) for r in rows]], dim=-1)

    def token_states(self, sequences: Sequence[Sequence[int]]) -> tuple[torch.Tensor, list[np.ndarray]]:
        """Final hidden states ``[T, d]`` in float32 of the tokens of some sequences, and for each sequence its tokens' rows.

        Where :attr:`packs` is true each distinct token is computed once and nothing is padded, see :mod:`models.shared_prefix`.
        """
        if self.packs:
            packed = pack(sequences, device=self.device)
            with self.autocast():
                states = packed_hidden_states(self.model, packed)
            return states.float(), packed.rows
        ids, mask = pad_right(sequences, self.tokenizer.pad_id, self.device)
        states = self.hidden_states(ids, mask).flatten(0, 1)
        return states, [row * ids.shape[1] + np.arange(len(s)) for row, s in enumerate(sequences)]

    @property
    def packs(self) -> bool:
        """Whether sequences are packed rather than padded: wanted, known to be exact, and without dropout."""
        return self.share_prefixes and not self.training and can_pack(self.model)

    def plan(self, sequences: Sequence[Sequence[int]], token_budget: int, ranks: int = 1) -> list[list[list[int]]]:
        """Micro-batches ``[rank][pass]`` within a budget of the tokens that :meth:`token_states` computes, padding included."""
        if self.packs:
            return plan_packed(sequences, token_budget, ranks)
        return plan_over_ranks([len(s) for s in sequences], token_budget, ranks)

    def encode(self, sequences: Sequence[Sequence[int]], token_budget: int, progress: Any = None) -> torch.Tensor:
        """Embed token sequences without gradients, in their order: ``[N, d]`` on the CPU."""
        out = torch.empty(len(sequences), self.hidden_size)
        with torch.inference_mode():
            for rows in self.plan(sequences, token_budget)[0]:
                out[rows] = self.embed_sequences([sequences[r] for r in rows]).cpu()
                if progress is not None:
                    progress(len(rows))
        return out

    # -- the policy face ------------------------------------------------------------------------------------------------

    def response_log_probs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """log π(c_t | q, c_<t) at the given temperature (eq. 6; the policy and reference terms of Stage II).

        Args:
            prompts: token ids of each row's prompt.
            responses: token ids of each row's rationale, its end token included; an empty row has no entries.
            temperature: logits are divided by it. Stage II passes the sampling temperature: log-probabilities of the distribution
                that was sampled, not of its temperature-1 relative.

        Returns:
            ``log_probs[B, R]`` with gradients, ``entropy[B, R]`` (nats, detached) and ``mask[B, R]``, R the longest response;
            padding is 0 in all three.
        """
        return self.response_log_probs_compared(prompts, responses, temperature, temperature)[:3]

    def response_log_probs_compared(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]], temperature: float, other: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What :meth:`response_log_probs` returns, and from the same logits the log-probabilities at temperature ``other``,
        ``[B, R]``, detached."""
        # the last token of a response predicts nothing that is asked for
        states, token_rows = self.token_states([[*p, *r[:-1]] for p, r in zip(prompts, responses, strict=True)])
        width = max((len(r) for r in responses), default=0)
        response_mask = torch.zeros(len(prompts), max(width, 1), device=self.device)
        for row, response in enumerate(responses):
            response_mask[row, : len(response)] = 1
        predicting = [rows[len(rows) - len(r) :] for rows, r in zip(token_rows, responses, strict=True)]
        targets = torch.tensor([t for r in responses for t in r], dtype=torch.long, device=self.device)
        hidden = states[torch.from_numpy(np.concatenate(predicting)).to(self.device)]
        selected = self.token_log_probs(hidden, targets, temperature, other, self.autocast)
        where = response_mask.bool()
        log_probs, entropy, compared = (torch.zeros_like(response_mask).masked_scatter(where, s) for s in selected)
        return log_probs, entropy, response_mask, compared

    # -- the rest -------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the transformer's own arithmetic; everything after it is float32."""
        if self.compute_dtype == torch.float32:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    def state(self) -> dict[str, torch.Tensor]:
        """The trainable parameters by name, tied ones once: what checkpoints hold and weight pushes carry."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def load_state(self, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the parameters in place.

        Raises:
            BackboneError: names or shapes differ from this model's; the message lists them.
        """
        check_weights(_shapes(dict(self.model.named_parameters())), _shapes(state))
        for name, value in state.items():
            self.load_parameter(name, value)

    def load_parameter(self, name: str, value: torch.Tensor) -> None:
        """Overwrite one parameter, of its own shape, in place."""
        with torch.no_grad():
            self.model.get_parameter(name).copy_(value)

    def gather_backbone(self) -> Backbone:
        """The model itself: it is whole, see :class:`models.export.Exportable`."""
        return self

    def blank_copy(self) -> Backbone:
        """A model on the CPU of the same kind and with the same tokenizer, its weights yet to be loaded."""
        from transformers import AutoModelForCausalLM
        from transformers.initialization import no_init_weights

        with no_init_weights():
            model = AutoModelForCausalLM.from_config(self.model.config, dtype=torch.float32)
        model.tie_weights()
        return Backbone(model.eval(), self.tokenizer, compute_dtype=self.compute_dtype, source=self.source)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def check_weights(own: Mapping[str, tuple[int, ...]], given: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse weights that are not those of a model; both arguments are shapes by name.

    Raises:
        BackboneError: names or shapes differ; the message lists them.
    """
    if own.keys() != given.keys():
        extra, absent = sorted(given.keys() - own.keys()), sorted(own.keys() - given.keys())
        raise BackboneError(f"weights of another model: unknown {extra[:3]}, missing {absent[:3]}")
    for name, shape in own.items():
        if given[name] != shape:
            raise BackboneError(f"weight {name}: shape {given[name]}, expected {shape}")
