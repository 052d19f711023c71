"""Ray clusters: connecting to one, what roles reserve of it, elastic groups, submitting jobs, planning without one."""

from __future__ import annotations
