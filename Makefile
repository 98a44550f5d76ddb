# Every target sets up what it needs by itself; nothing but Python 3.11+ and make is required.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
UV     := $(BIN)/uv
BASE   := $(VENV)/.installed-base
STAMP  := $(VENV)/.installed
ARGS   ?=
# Where `make dist` puts its packages.
DIST   ?= dist
# Interpreters for `make test-pythons`: those on the PATH, or as given.
PYTHONS ?= $(shell for minor in 11 12 13 14; do command -v python3.$$minor; done)
# Processes that share the tests; most tests wait most of the time, some keep a core busy.
JOBS   ?= 3
OFFLINE := packages could not be fetched: is this machine online? PIP_INDEX_URL and UV_DEFAULT_INDEX name a mirror; then make again
.DEFAULT_GOAL := help
# Compiled modules are kept: without them every start of a broker compiles a hundred files.
export PYTHONDONTWRITEBYTECODE =

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@echo "making $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv || { echo "$(OFFLINE)"; exit 1; }

$(BASE): pyproject.toml | $(UV)
	@echo "1/2 installing headrace with Spark and a Java runtime (about 600 MB the first time, none of it outside $(VENV) and uv's cache)"
	@$(BIN)/uv pip install --python $(BIN)/python -e '.[all]' || { echo "$(OFFLINE)"; exit 1; }
	@echo "2/2 compiling"
	@$(BIN)/python -m compileall -q src
# What Spark's Python processes import: they have ten seconds to start, and a busy machine may take them to compile it.
	@$(BIN)/python -c 'import pandas, pyarrow, pyspark.sql.streaming.python_streaming_source_runner, pyspark.worker, headrace.spark.source.batch'
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
	@$(BIN)/ruff format --check --quiet src tests bench examples
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint ## lint, then every test that fits in minutes
	@HEADRACE_COVERAGE=1 $(BIN)/python -m pytest -n $(JOBS) -m "not soak"

test-pythons: $(STAMP) ## the unit tests on each python3.11 to 3.14 on the PATH
	@for python in $(PYTHONS); do \
	  name=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])') || { echo "$$python does not run: passed over"; continue; }; \
	  echo "Python $$name ($$python)"; \
	  test -x .venvs/$$name/bin/python || $$python -m venv .venvs/$$name || exit 1; \
	  $(BIN)/uv pip install --quiet --python .venvs/$$name/bin/python -e '.[all,dev]' || { echo "$(OFFLINE)"; exit 1; }; \
	  .venvs/$$name/bin/python -m pytest -n $(JOBS) -m "not soak" tests/unit || exit 1; \
	done

soak: $(STAMP) ## the long runs: many seeds, kill -9 loops, power cuts
	@$(BIN)/python -m pytest -m soak -v

bench: $(STAMP) ## Headrace and Apache Kafka side by side; writes docs/bench
	@$(BIN)/python -m bench

dist: $(UV) ## build the sdist and the wheel into dist/
	@rm -f $(DIST)/headrace-*
	@$(UV) build --out-dir $(DIST) || { echo "not built, see above; and if $(OFFLINE)"; exit 1; }

clean: ## remove what was built or downloaded here
	@rm -rf $(VENV) .venvs build dist .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help setup run lint test test-pythons soak bench dist clean
