"""How systems are called in a table: the paper's name where it is the same system, the user's, or the model's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evaluation.paper_tables import public_name
from retrieval.retriever import split_model_spec


class Names:
    """Labels of models.

    Args:
        given: ``MODEL=LABEL`` each; a label that the paper's tables have says that this model is that row's.

    Raises:
        ValueError: without ``=``, or with nothing on one side of it.
    """

    def __init__(self, given: Sequence[str] = ()) -> None:
        self._labels: dict[str, str] = {}
        self._used: set[str] = set()
        for text in given:
            model, _, label = text.rpartition("=")
            if not model or not label:
                raise ValueError(f"name is {text!r}; expected MODEL=LABEL, such as runs/mine/export=SkillReason-0.6B")
            self._labels[model] = label

    def of_model(self, model: str) -> str:
        """The label of what ``--model`` or ``--rerank`` takes."""
        if model in self._labels:
            self._used.add(model)
            return self._labels[model]
        if model.startswith("hybrid:"):
            return f"Hybrid (BM25 + {self.of_model(split_model_spec(model)[1])})"
        return public_name(model)

    def of_result(self, result: Mapping[str, Any]) -> str:
        """The label of an evaluated system: retriever, rationales and reranker."""
        label = self.of_model(result["model"])
        if result.get("augment"):
            label += f" + rationales ({result['augment']['source']})"
        if result.get("rerank"):
            label += f" × {self.of_model(result['rerank']['model'])}"
        return label

    def unused(self) -> list[str]:
        """Given models that no result had: a name mistyped, most likely."""
        return [model for model in self._labels if model not in self._used]
