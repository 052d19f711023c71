"""A plan as text: a table of the roles, one of the GPUs, one of what else could be chosen."""

from __future__ import annotations

from collections.abc import Sequence

from cluster.plan import GB, Plan, Role

PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "working", "process")


def plan_text(plan: Plan) -> str:
    """What ``skillreason plan`` prints; sizes in 10^9 bytes."""
    blocks = [_heading(plan), _roles(plan), _gpus(plan), _alternatives(plan)]
    blocks += ["\n".join(plan.notes)] if plan.notes else []
    blocks.append(_verdict(plan))
    return "\n\n".join(block for block in blocks if block)


def _heading(plan: Plan) -> str:
    parameters = plan.shape.parameters
    return (
        f"{plan.run}: {plan.model}, {parameters:,} parameters\n"
        f"an estimate in GB (10^9 bytes) for GPUs of {plan.gpu_bytes / GB:g} GB; no cluster was asked"
    )


def _roles(plan: Plan) -> str:
    head = ["role", "processes", "GPUs each", "strategy", *(part.replace("_", " ") for part in PARTS), "peak"]
    return _table([head, *(_role(role) for role in plan.roles)])


def _role(role: Role) -> list[str]:
    sizes = [getattr(role.memory, part) for part in PARTS]
    return [
        role.name,
        str(role.members),
        f"{role.share.gpus:g}",
        role.strategy,
        *(f"{max(size, 0) / GB:.1f}" for size in sizes),
        f"{role.memory.peak / GB:.1f}",
    ]


def _gpus(plan: Plan) -> str:
    rows = [["node", "GPU", "processes", "GB"]]
    for gpu in plan.gpus:
        rows.append([str(gpu.node), str(gpu.index), ", ".join(gpu.processes) or "-", f"{gpu.peak / GB:.1f}"])
    return _table(rows, left=(2,)) if plan.gpus else ""


def _alternatives(plan: Plan) -> str:
    """Peaks of the trained model: a row a strategy, a column a number of workers; a star marks what does not fit."""
    workers = sorted({entry["workers"] for entry in plan.alternatives})
    rows = [[f"peak of {plan.roles[0].name}, by workers", *map(str, workers)]]
    for strategy in dict.fromkeys(entry["strategy"] for entry in plan.alternatives):
        found = {e["workers"]: e for e in plan.alternatives if e["strategy"] == strategy}
        cells = [f"{found[w]['peak'] / GB:.1f}{' ' if found[w]['fits'] else '*'}" for w in workers]
        rows.append([strategy, *cells])
    star = "\n* does not fit" if any(not entry["fits"] for entry in plan.alternatives) else ""
    return _table(rows) + star


def _verdict(plan: Plan) -> str:
    if not plan.problems:
        nodes = len({gpu.node for gpu in plan.gpus})
        return f"fits on {nodes} node{'s' if nodes > 1 else ''}" if nodes else "nothing needs a GPU"
    return "does not fit:\n" + "\n".join(f"- {problem}" for problem in plan.problems)


def _table(rows: Sequence[Sequence[str]], left: Sequence[int] = ()) -> str:
    """Columns as wide as their widest cell; the first and those of ``left`` begin at the left, the others end at the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column == 0 or column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
