# Everything is a make target; `make help` lists them. PYTHON names the interpreter that makes the virtual environment
# (and the one that gpu-test runs in, which uses what is installed there and makes nothing).
PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
STAMP  := $(VENV)/.installed
JOBS   ?= 2

.DEFAULT_GOAL := help
.PHONY: help venv demo test check bench gpu-test tools clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1|\2/' | awk -F'|' '{ printf "%-16s%s\n", $$1, $$2 }'

demo: venv  ## embed sentences with a real model, eager and fused, then print the ledger (DEMO="--peer inductor")
	@$(RUN) -m demo.embed $(DEMO)

test: venv  ## run every test that this machine can run (TESTS="tests/ir -k slice")
	@$(RUN) -m pytest -n $(JOBS) $(TESTS)

check: venv  ## ruff, mypy and the structure test
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check --quiet .
	@$(RUN) -m mypy
	@$(RUN) -m pytest -q tests/shape

bench: venv  ## measure models eager, fused and with Inductor; figures go to bench/results (BENCH="...")
	@$(RUN) -m bench $(BENCH)

gpu-test:  ## run the tests marked gpu with the packages that PYTHON already has (no virtual environment, no network)
	@PYTHONPATH=src $(PYTHON) -m pytest -m gpu $(or $(TESTS),tests)

venv: $(STAMP)  ## make .venv with everything that the other targets need

$(STAMP): pyproject.toml requirements/constraints.txt | tools
	@test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(RUN) -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev,demo]'
	@touch $@

tools:
	@command -v $(PYTHON) >/dev/null || { echo "Interfuse needs Python 3.11 or newer: install it, or name one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Interfuse needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1): name a newer one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) cannot make virtual environments: install its venv module (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@command -v $${INTERFUSE_CXX:-g++} >/dev/null || { echo "Interfuse compiles CPU kernels with g++, which is missing: install it (Debian: apt-get install g++), or name another compiler in INTERFUSE_CXX." >&2; exit 1; }

clean:  ## remove what tools left behind (the virtual environment stays)
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
