# Every target sets up what it needs by itself; nothing but Python 3.11+ and make is required.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.installed-base
STAMP  := $(VENV)/.installed
ARGS   ?=
# Processes that share the tests; most tests wait most of the time, some keep a core busy.
JOBS   ?= 2
OFFLINE := packages could not be fetched: is this machine online? PIP_INDEX_URL and UV_DEFAULT_INDEX name a mirror; then make again
.DEFAULT_GOAL := help
# Compiled modules are kept: without them every start of a broker compiles a hundred files.
export PYTHONDONTWRITEBYTECODE =

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(BASE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@echo "1/3 making $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || { echo "$(OFFLINE)"; exit 1; }
	@echo "2/3 installing headrace with Spark and a Java runtime (about 600 MB the first time, none of it outside $(VENV) and uv's cache)"
	@$(BIN)/uv pip install --python $(BIN)/python -e '.[all]' || { echo "$(OFFLINE)"; exit 1; }
	@echo "3/3 compiling"
	@$(BIN)/python -m compileall -q src
# What Spark's Python processes import: they have ten seconds to start, and a busy machine may take them to compile it.
	@$(BIN)/python -c 'import pandas, pyarrow, pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker, headrace.spark.source'
	@touch $@

$(STAMP): $(BASE)
	@echo "installing the tools for tests and benches"
	@$(BIN)/uv pip install --python $(BIN)/python -e '.[all,dev]'
	@touch $@

setup: $(STAMP) ## make .venv and install everything

run: $(BASE) ## the main job, live; ARGS="--for 60s --report out.html" checks it
	@$(BIN)/headrace demo $(ARGS)

lint: $(STAMP) ## ruff, mypy --strict, import contracts
	@$(BIN)/ruff check src tests bench examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint ## lint, then every test that fits in minutes
	@$(BIN)/python -m pytest -n $(JOBS) -m "not soak"

soak: $(STAMP) ## the long runs: many seeds, kill -9 loops, power cuts
	@$(BIN)/python -m pytest -m soak -v

bench: $(STAMP) ## Headrace and Apache Kafka side by side; writes docs/bench
	@$(BIN)/python -m bench

clean: ## remove what was built or downloaded here
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup run lint test soak bench clean
