# Every target sets up what it needs, from a clean clone, and says what it does.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOAK   ?= 10m
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test soak bench clean

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed   ## conversations that overflow the device, with and without offloading
	@echo "==> kvtide demo: one workload, four runs (half a minute)"
	@$(BIN)/kvtide demo

test: $(VENV)/.installed-dev   ## formatting, lint, types, tests
	@echo "==> formatting and lint (ruff)"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "==> types (mypy, strict)"
	@$(BIN)/mypy
	@echo "==> tests (pytest)"
	@$(BIN)/python -m pytest -n 2

soak: $(VENV)/.installed   ## fresh seeds of the simulator on all cores; SOAK=10m, 2h, ...
	@$(BIN)/kvtide simulate --soak $(SOAK)

bench: $(VENV)/.installed   ## scheduler-side cost per block, against host pool size
	@$(BIN)/python benchmarks/core.py

clean:          ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "==> installing kvtide into $(VENV)"
	@$(PIP) install --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "==> installing kvtide and its development tools into $(VENV)"
	@$(PIP) install --editable '.[dev]'
	@touch $(VENV)/.installed $@
