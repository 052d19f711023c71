"""Coverage-constrained selection of training requests (D.1): every category gets its share, none the lion's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

RESERVE = 500
CATEGORY_SHARE = 0.40
PER_SKILL = 2


@dataclass(frozen=True)
class Candidate:
    """A request that may be selected."""

    record_id: str
    skill_id: str
    category: str
    score: float


@dataclass(frozen=True)
class Selection:
    """``chosen`` record ids in input order, and how many candidates each limit kept out."""

    chosen: list[str]
    left_out: dict[str, int]
    by_category: dict[str, int]


def select(
    candidates: Sequence[Candidate],
    target: int,
    *,
    reserve: int = RESERVE,
    category_share: float = CATEGORY_SHARE,
    per_skill: int = PER_SKILL,
) -> Selection:
    """Choose up to ``target`` requests, deterministic.

    First every category, the smallest first, reserves up to ``reserve`` of its best; then one global pass in the order of the
    scores fills up to ``target``. No skill gets more than ``per_skill`` requests and no category more than ``category_share`` of
    what is selected in the end: where candidates run out, the limit shrinks with the selection. Equal scores keep their input
    order.

    Raises:
        ValueError: a limit that is not positive, or so few categories that no selection can keep within ``category_share``.
    """
    for key, value in (("target", target), ("per_skill", per_skill), ("category_share", category_share)):
        if value <= 0:
            raise ValueError(f"select.{key} is {value}; expected more than 0")
    categories = {c.category for c in candidates}
    if candidates and len(categories) * category_share < 1:
        raise ValueError(
            f"select.category_share is {category_share:g}, and there are {len(categories)} categories: together they cannot make "
            f"up a whole; expected at least {1 / len(categories):.2f}"
        )
    size = min(target, len(candidates))
    while size:
        chosen, left_out = _fill(candidates, size, reserve, int(category_share * size + 1e-9), per_skill)
        if len(chosen) == size:
            break
        size = min(len(chosen), size - 1)  # too few for this limit: what is left sets a smaller one
    else:
        chosen, left_out = [], {}
    rows = sorted(chosen)
    by_category = Counter(candidates[row].category for row in rows)
    return Selection([candidates[row].record_id for row in rows], left_out, dict(sorted(by_category.items())))


def _fill(
    candidates: Sequence[Candidate], size: int, reserve: int, limit: int, per_skill: int
) -> tuple[set[int], dict[str, int]]:
    best_first = sorted(range(len(candidates)), key=lambda row: (-candidates[row].score, row))
    members: dict[str, list[int]] = {}
    for row in best_first:
        members.setdefault(candidates[row].category, []).append(row)
    chosen: set[int] = set()
    skills: Counter[str] = Counter()
    used: Counter[str] = Counter()

    def blocked(row: int) -> str:
        if skills[candidates[row].skill_id] >= per_skill:
            return "skill_full"
        if used[candidates[row].category] >= limit:
            return "category_full"
        return "selection_full" if len(chosen) >= size else ""

    def take(row: int) -> None:
        chosen.add(row)
        skills[candidates[row].skill_id] += 1
        used[candidates[row].category] += 1

    for category in sorted(members, key=lambda name: (len(members[name]), name)):
        for row in members[category]:
            if used[category] >= reserve:
                break
            if not blocked(row):
                take(row)
    left_out: Counter[str] = Counter()
    for row in best_first:
        if row not in chosen:
            reason = blocked(row)
            if reason:
                left_out[reason] += 1
            else:
                take(row)
    return chosen, dict(sorted(left_out.items()))
