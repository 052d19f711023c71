"""What words a skill has that others lack: the evidence for "add these to the description"."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

from tqdm import tqdm

from data_pipeline.corpus import Skill, SkillCorpus
from data_pipeline.phrases import CODE_BLOCK, LINK
from data_pipeline.quality import content_words
from data_pipeline.skill2query.quality import stems
from retrieval.bm25 import tokenize

TERMS = 6
"""Words of a suggestion."""
_LONGEST = 24
_REQUESTED = 3.0
"""Weight of a word in requests that failed, against its occurrences in the body."""


class Wording:
    """Document frequencies of a library's content words.

    Args:
        corpus: the library.
        progress: show a bar.
    """

    def __init__(self, corpus: SkillCorpus, progress: bool = False) -> None:
        self.corpus = corpus
        self._documents: Counter[str] = Counter()
        for skill in tqdm(corpus, desc="words", unit="skill", disable=not progress):
            self._documents.update(keywords(f"{skill.name} {skill.description} {prose(skill.body)}"))

    def share(self, word: str) -> float:
        """Share of the skills that have a word."""
        return self._documents[word] / len(self.corpus)

    def idf(self, word: str) -> float:
        """log(n / df); 0 for a word that all skills have."""
        return math.log(len(self.corpus) / max(1, self._documents[word]))

    def only_here(self, skill: Skill, rivals: Sequence[Skill] = (), limit: int = TERMS) -> list[str]:
        """Words of a skill's whole text that none of its rivals has, the most telling first."""
        counts = _counts(f"{skill.name} {skill.description} {prose(skill.body)}")
        theirs = _forms(" ".join(f"{rival.name} {rival.description} {prose(rival.body)}" for rival in rivals))
        in_front = keywords(f"{skill.name} {skill.description}")
        scores = {
            word: self.idf(word) * (math.log1p(count) + (word in in_front))
            for word, count in counts.items()
            if (count > 1 or word in in_front) and not _forms(word) & theirs
        }
        return _best(scores, limit)

    def missing(
        self, skill: Skill, asked: Iterable[str] = (), rivals: Sequence[Skill] = (), limit: int = TERMS
    ) -> list[str]:
        """Words for a description: the body or failed requests have them, name and description of skill and rivals do not.

        Args:
            asked: capabilities of the requests that did not find the skill.
            rivals: skills that were found in its place.
        """
        known = _forms(" ".join(f"{other.name} {other.description}" for other in (skill, *rivals)))
        body = _counts(prose(skill.body))
        wanted = Counter(word for capability in asked for word in keywords(capability))
        scores = {
            word: self.idf(word) * (math.log1p(body[word]) + _REQUESTED * math.log1p(wanted[word]))
            for word in body.keys() | wanted.keys()
            if (body[word] > 1 or wanted[word]) and not _forms(word) & known
        }
        return _best(scores, limit)

    def common(self, skill: Skill, limit: int = 4) -> list[str]:
        """Words of a description that a tenth to four fifths of the library have, too, the most common first.

        What nearly all have, such as "use", takes no requests from anybody.
        """
        words = [word for word in keywords(skill.description) if 0.1 <= self.share(word) <= 0.8]
        return sorted(words, key=lambda word: (-self._documents[word], word))[:limit]


def overlap(left: Skill, right: Skill) -> float:
    """Share (0..1) of the content words of one's name and description that stand in the other's."""
    mine = content_words(f"{left.name} {left.description}")
    return len(mine & content_words(f"{right.name} {right.description}")) / len(mine) if mine else 0.0


def prose(text: str) -> str:
    """Text without code blocks and addresses: what is in them is seldom what anybody asks for."""
    return LINK.sub(r"\1", CODE_BLOCK.sub(" ", text))


@lru_cache(maxsize=4096)
def keywords(text: str) -> frozenset[str]:
    """Content words that may stand in a suggestion: letters alone, of a length that people write."""
    return frozenset(word for word in content_words(text) if word.isalpha() and 3 <= len(word) <= _LONGEST)


def _forms(text: str) -> frozenset[str]:
    """Words and, of those in Latin letters, stems: what counts as having a word."""
    return content_words(text) | stems(text)


def _counts(text: str) -> Counter[str]:
    usable = keywords(text)
    return Counter(word for word in tokenize(text) if word in usable)


def _best(scores: dict[str, float], limit: int) -> list[str]:
    """The words of the highest scores, of words with one stem only the first."""
    out: list[str] = []
    seen: set[str] = set()
    for word in sorted(scores, key=lambda word: (-scores[word], word)):
        own = _forms(word)
        if scores[word] > 0 and not own & seen:
            out.append(word)
            seen |= own
        if len(out) == limit:
            break
    return out
