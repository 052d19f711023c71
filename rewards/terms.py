"""Reward terms: named functions of a :class:`RewardBatch` with one float per rollout, and their weighted sum (eq. 12)."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from configs.schema import TermConfig
from rewards.batch import RewardBatch

TermFunction = Callable[..., "torch.Tensor | Sequence[float]"]


class RewardError(ValueError):
    """A reward that cannot be trained on; the message names the term, the rollout, its query and the value."""


def margin(batch: RewardBatch, *, tau: float = 0.05) -> torch.Tensor:
    """Eq. 9: tanh(m([q; c]) / τ_margin), in (-1, 1)."""
    return torch.tanh(batch.margin / tau)


def gain(batch: RewardBatch, *, tau: float = 0.05) -> torch.Tensor:
    """Eq. 10: (m([q; c]) - m(q)) / τ_gain, clipped to [-1, 1]: what the rationale adds to the bare request."""
    return ((batch.margin - batch.baseline_margin[batch.group]) / tau).clamp(-1.0, 1.0)


def length(batch: RewardBatch, *, budget: float = 128, rate: float = 0.01, cap: float = 0.4) -> torch.Tensor:
    """The negative of eqs. 11 and 13: -min(cap, rate · max(0, |c| - budget)), in [-cap, 0]."""
    return -(rate * (batch.lengths.float() - budget).clamp(min=0.0)).clamp(max=cap)


BUILTIN_TERMS: dict[str, TermFunction] = {"margin": margin, "gain": gain, "length": length}


@dataclass(frozen=True)
class RewardTerm:
    """A term ready to be called: its name (that of its curve), weight and parameters."""

    name: str
    function: TermFunction
    weight: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, batch: RewardBatch) -> torch.Tensor:
        """Values ``[R]`` in float32.

        Raises:
            RewardError: the function raised, returned another number of values, or a value that is not finite.
        """
        try:
            values = self.function(batch, **self.params)
        except Exception as error:
            raise RewardError(f"reward term {self.name!r} raised {type(error).__name__}: {error}") from error
        expected = len(batch.rationales)
        try:
            tensor = torch.as_tensor(values, dtype=torch.float32).detach().cpu()
        except (TypeError, ValueError, RuntimeError) as error:
            raise RewardError(
                f"reward term {self.name!r} returned a {type(values).__name__} that is not {expected} floats: {error}"
            ) from error
        if tensor.shape != (expected,):
            raise RewardError(
                f"reward term {self.name!r} returned shape {tuple(tensor.shape)}; expected one float per rollout, ({expected},)"
            )
        bad = torch.nonzero(~torch.isfinite(tensor)).flatten()
        if len(bad):
            row = int(bad[0])
            query = batch.query_ids[int(batch.group[row])]
            raise RewardError(
                f"reward term {self.name!r} gave {tensor[row].item()} for rollout {row} of query {query!r} "
                f"(rationale {batch.rationales[row][:80]!r}); {len(bad)} of {expected} values are not finite"
            )
        return tensor


def load_terms(config: Mapping[str, TermConfig]) -> list[RewardTerm]:
    """Resolve ``reward.terms``: built-ins by name, others by their import path.

    Raises:
        RewardError: no such module or function, or a parameter that the function does not take.
    """
    terms = []
    for name, term in config.items():
        function = _import_function(name, term.function) if term.function else BUILTIN_TERMS.get(name)
        if function is None:
            raise RewardError(f"reward.terms.{name}: no built-in of this name; there are {', '.join(BUILTIN_TERMS)}")
        try:
            inspect.signature(function).bind(None, **term.params)
        except TypeError as error:
            raise RewardError(f"reward.terms.{name}.params is {dict(term.params)}: {error}") from error
        except (
            ValueError
        ):  # a compiled function that does not tell its parameters: what is wrong shows when it is called
            pass
        terms.append(RewardTerm(name, function, term.weight, dict(term.params)))
    return terms


def _import_function(name: str, path: str) -> TermFunction:
    module_name, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module of the user's: whatever it raises while it is imported
        raise RewardError(
            f"reward.terms.{name}.function is {path!r}: {type(error).__name__}: {error}; expected package.module:function"
        ) from error
    if not callable(function):
        raise RewardError(f"reward.terms.{name}.function is {path!r}: {type(function).__name__} is not callable")
    return cast(TermFunction, function)


def total_reward(batch: RewardBatch, terms: Sequence[RewardTerm]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Eq. 12: the weighted sum of the terms, ``[R]``, and each term's unweighted values by name.

    Each function of the user's gets a batch of its own: what it changes there, no other term sees.

    Raises:
        RewardError: a term failed, or finite terms with their weights do not have a finite sum.
    """
    built_in = list(BUILTIN_TERMS.values())  # these change nothing, and a pool may be large
    values = {term.name: term(batch if term.function in built_in else _own_copy(batch)) for term in terms}
    total = torch.zeros(len(batch.rationales))
    for term in terms:
        total += term.weight * values[term.name]
    bad = torch.nonzero(~torch.isfinite(total)).flatten()
    if len(bad):
        weighted = {term.name: f"{term.weight:g} x {values[term.name][bad[0]].item():g}" for term in terms}
        raise RewardError(
            f"the weighted sum of the terms is {total[bad[0]].item()} for rollout {int(bad[0])}: {weighted}"
        )
    return total, values


def _own_copy(batch: RewardBatch) -> RewardBatch:
    """Lists and tensors copied, and what the batch computes on demand with them: computed once, not once a term."""
    fields = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    copied = {name: v.clone() if isinstance(v, torch.Tensor) else list(v) for name, v in fields.items()}
    copy = dataclasses.replace(batch, **copied)
    for name in ("similarity", "margin", "baseline_margin"):
        vars(copy)[name] = getattr(batch, name).clone()
    return copy
