# Every target sets up what it needs by itself; nothing but Python 3.11+ and make is required.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
.DEFAULT_GOAL := help
# Compiled modules are kept: without them every start of a broker compiles a hundred files.
export PYTHONDONTWRITEBYTECODE =

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing headrace and its tools into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@$(BIN)/uv pip install --quiet --python $(BIN)/python -e '.[all,dev]'
	@$(BIN)/python -m compileall -q src
	@touch $@

setup: $(STAMP) ## make .venv and install everything

run: $(STAMP) ## start a broker, run the main job against it and show what happened
	@$(BIN)/headrace demo

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check src tests bench
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint ## lint, then every test that fits in minutes
	@$(BIN)/python -m pytest -m "not soak"

soak: $(STAMP) ## the long runs: many seeds, kill -9 loops, power cuts
	@$(BIN)/python -m pytest -m soak -v

bench: $(STAMP) ## Headrace and Apache Kafka side by side; writes docs/bench
	@$(BIN)/python -m bench

clean: ## remove what was built or downloaded here
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup run lint test soak bench clean
