"""Print what a vLLM wheel requires, less torch and the torch companions that must not be installed beside a CPU build."""

from __future__ import annotations

import sys
import zipfile
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement

# torch and setuptools are in the environment already. The companions' wheels on a package index are built against
# another torch: they fail to load, and transformers' Qwen3 import fails with them.
LEFT_OUT = {"torch", "torchvision", "torchaudio", "torchcodec", "setuptools"}


def requirements(wheel: Path) -> list[str]:
    """The requirement lines of `wheel` that apply to this interpreter and platform.

    Raises:
        ValueError: the file carries no wheel metadata.
    """
    with zipfile.ZipFile(wheel) as archive:
        metadata = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if len(metadata) != 1:
            raise ValueError(f"{wheel}: expected one .dist-info/METADATA, found {len(metadata)}")
        message = Parser().parsestr(archive.read(metadata[0]).decode())
    wanted = []
    for line in message.get_all("Requires-Dist", []):
        requirement = Requirement(line)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and requirement.name.lower() not in LEFT_OUT:
            requirement.marker = None
            wanted.append(str(requirement))
    return wanted


if __name__ == "__main__":
    print("\n".join(requirements(Path(sys.argv[1]))))
