"""What a reranker reads: Qwen3-Reranker's template around a request and one skill document, and its token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from models.tokenization import BackboneError, ModelTokenizer
from models.views import BODY_CHARS, DEFAULT_FORMAT, DESCRIPTION_CHARS, serialize_document

FORMAT_FILE = "reranker.json"
RERANK_INSTRUCTION = (
    "Given a task description, judge whether the skill document is relevant and useful for completing the task"
)
"""C.2.2 of the Skill2Query paper; SkillReason names "the Qwen3 reranking instruction" only, whose task is the user's to word."""
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
QUERY_LABEL = "\n<Query>: "
DOCUMENT_LABEL = "\n<Document>: "
ANALYSIS_LABEL = "\nQuery analysis:"


@dataclass(frozen=True)
class RerankerFormat:
    """Everything between a request, a skill and the tokens that a reranker scores; stored with the model.

    Attributes:
        instruction: the task, after ``<Instruct>:``.
        document_format: see :func:`models.views.serialize_document`.
        query_chars: characters kept of a request; 0: all.
        description_chars, body_chars: kept of a document's parts.
        max_length: tokens of a pair with its template (Table 17).
        yes, no: the answers whose logits are compared; each must be one token.
    """

    instruction: str = RERANK_INSTRUCTION
    document_format: str = DEFAULT_FORMAT
    query_chars: int = 0
    description_chars: int = DESCRIPTION_CHARS
    body_chars: int = BODY_CHARS
    max_length: int = 4096
    yes: str = "yes"
    no: str = "no"

    @property
    def head(self) -> str:
        """The template up to the request."""
        return f"{self._system}<Instruct>: {self.instruction}{QUERY_LABEL}"

    @property
    def _system(self) -> str:
        return (
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            f'provided. Note that the answer can only be "{self.yes}" or "{self.no}".<|im_end|>\n<|im_start|>user\n'
        )

    def request(self, query: str) -> str:
        """As much of a request as the model sees."""
        return query[: self.query_chars] if self.query_chars else query

    def document(self, name: str, description: str, body: str) -> str:
        """A skill as the model sees it."""
        return serialize_document(
            name,
            description,
            body,
            self.document_format,
            description_chars=self.description_chars,
            body_chars=self.body_chars,
        )

    def chat_template(self) -> str:
        """The same template for sentence-transformers, which gives the pair as messages of roles ``query`` and ``document``.

        A message of the role ``system``, its name for a prompt, replaces the instruction.
        """

        def content(role: str, default: str) -> str:
            return (
                f'messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first | default({default})'
            )

        def literal(text: str) -> str:
            return json.dumps(text, ensure_ascii=False)

        cut = f"[:{self.query_chars}]" if self.query_chars else ""
        parts = [
            literal(f"{self._system}<Instruct>: "),
            content("system", literal(self.instruction)),
            literal(QUERY_LABEL),
            f"({content('query', literal(''))}){cut}",
            literal(DOCUMENT_LABEL),
            content("document", literal("")),
            literal(SUFFIX),
        ]
        return "".join("{{ " + part + " }}" for part in parts)

    def to_json(self, answer_ids: tuple[int, int]) -> dict[str, Any]:
        """What ``reranker.json`` holds."""
        return {**asdict(self), "yes_token_id": answer_ids[0], "no_token_id": answer_ids[1]}


def read_format(folder: str | Path, tokenizer: ModelTokenizer) -> RerankerFormat:
    """The format stored with a model; the defaults, Qwen3-Reranker's, where a folder or hub model stores none.

    Raises:
        BackboneError: a file that is damaged, or that was written for another tokenizer.
    """
    path = Path(folder) / FORMAT_FILE
    if not str(folder) or not path.is_file():
        return RerankerFormat()
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        found = RerankerFormat(**{field.name: stored[field.name] for field in fields(RerankerFormat)})
        ids = (stored["yes_token_id"], stored["no_token_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise BackboneError(
            f"{path}: not a reranker's format ({error!r}); expected what export_reranker wrote"
        ) from error
    if answer_token_ids(tokenizer, found, str(folder)) != ids:
        raise BackboneError(f"{path}: token ids of yes and no are {ids}; the tokenizer beside it has others")
    return found


def answer_token_ids(tokenizer: ModelTokenizer, answers: RerankerFormat, source: str) -> tuple[int, int]:
    """Token ids of the two answers.

    Raises:
        BackboneError: an answer is not one token of the vocabulary, or both are the same.
    """
    found: list[int] = []
    for word in (answers.yes, answers.no):
        ids = tokenizer.hf(word, add_special_tokens=False)["input_ids"]
        if len(ids) != 1 or ids[0] == tokenizer.hf.unk_token_id:
            raise BackboneError(
                f"{source}: the answer {word!r} is {len(ids)} tokens of the tokenizer; expected one known token: give a model "
                "that has it, or other answers with data.answers=yes/no"
            )
        found.append(int(ids[0]))
    if found[0] == found[1]:
        raise BackboneError(f"{source}: the answers {answers.yes!r} and {answers.no!r} are the same token")
    return found[0], found[1]


class PairTokenizer:
    """Token ids of pairs and of the query prefix; over-long input loses the end of the document, then of the request.

    A pair is tokenized as one string, as sentence-transformers does, so that both see the same tokens.
    """

    def __init__(self, tokenizer: ModelTokenizer, form: RerankerFormat):
        self.tokenizer, self.form = tokenizer, form

    def pairs(self, query: str, documents: Sequence[str], rationale: str = "") -> list[list[int]]:
        """``[n]`` sequences that end at the answer position, each at most ``max_length`` long.

        Args:
            documents: serialized ones, see :meth:`RerankerFormat.document`.
            rationale: the query analysis, read between the request and the document; empty: none.

        Raises:
            ValueError: the template alone exceeds ``max_length``.
        """
        request = self.form.request(query) + (ANALYSIS_LABEL + rationale if rationale else "")
        before = self.form.head + request + DOCUMENT_LABEL
        whole = self._ids([before + document + SUFFIX for document in documents])
        return [self._fit(ids, before, request) for ids in whole]

    def query(self, query: str) -> list[int]:
        """The query prefix: the template up to the end of the request, whose last hidden state is h(q)."""
        return self._within(self.form.head + self.form.request(query))

    def analysis_prompt(self, query: str) -> list[int]:
        """The query prefix and the label after which a rationale stands."""
        (label,) = self._ids([ANALYSIS_LABEL])
        return [*self.query(query), *label]

    def analysis(self, query: str, rationale: Sequence[int]) -> list[int]:
        """[q; rationale] from the tokens of a rationale without its end token."""
        return [*self.analysis_prompt(query), *rationale]

    def _within(self, text: str) -> list[int]:
        return self._ids([text])[0][: self.form.max_length]

    def _fit(self, ids: list[int], before: str, request: str) -> list[int]:
        limit = self.form.max_length
        if len(ids) <= limit:
            return ids
        first, suffix = self._ids([before, SUFFIX])
        room = limit - len(suffix)
        if len(first) <= room:
            return [*ids[:room], *suffix]
        head, words, label = self._ids([self.form.head, request, DOCUMENT_LABEL])
        room -= len(head) + len(label)
        if room < 0:
            raise ValueError(
                f"a maximum of {limit} tokens leaves no room for the pair: the template takes {limit - room}"
            )
        return [*head, *words[:room], *label, *suffix]

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # verbose: it would warn of every text that is about to be cut
        return self.tokenizer.hf(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []
