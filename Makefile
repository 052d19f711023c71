# `make demo` and `make test` are all a newcomer needs: both set everything up first. `make help` lists the rest.

BACKBONE ?= tiny
PYTHON ?=
BIN := .venv/bin

.DEFAULT_GOAL := help
.PHONY: setup demo test test-fast test-slow lint format typecheck clean help

setup: ## make .venv with the pinned versions; does nothing when that is done
	@PYTHON="$(PYTHON)" bash scripts/setup.sh

demo: setup ## the main job on the sample library: train both stages, evaluate, search (BACKBONE=tiny or small)
	$(BIN)/skillreason demo --backbone $(BACKBONE) --out runs/demo

test: setup ## every test but the slow ones and vLLM's
	$(BIN)/python -m pytest -m "not slow and not vllm"

test-fast: setup ## under a minute: no Ray, no engines, no data set
	$(BIN)/python -m pytest -m "not ray and not slow and not vllm and not deepspeed and not data"

test-slow: setup ## what takes longer: whole runs, vLLM, DeepSpeed
	$(BIN)/python -m pytest -m "slow or vllm or deepspeed"

lint: setup ## ruff: rules and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup ## apply ruff's formatting and safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: setup ## pyright
	$(BIN)/pyright

clean: ## remove caches and build output; keeps .venv and runs/
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12
