"""A loaded tiny backbone that the tests of a module only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.backbone import Backbone


@pytest.fixture(scope="session")
def backbone(tiny_folder: Path) -> Backbone:
    return Backbone.load(tiny_folder).eval()
