"""The Ray cluster a run uses: connecting to it, and what its roles reserve."""

from __future__ import annotations

from cluster.placement import check_resources, ray_session

__all__ = ["check_resources", "ray_session"]
