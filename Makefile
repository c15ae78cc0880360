# Every target sets up what it needs: a virtual environment in .venv, made anew when what goes into it changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Never without the constraints, neither here nor in what pip starts for a build: a free torch is gigabytes of CUDA.
PIP_INSTALL := PIP_CONSTRAINT=$(CURDIR)/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet -c constraints.txt

# One thread for each process: the machines that test have few cores and the tests many processes.
export OMP_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint etcd bench clean

help: ## say what there is to do
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null || \
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' $(MAKEFILE_LIST)

demo: $(READY) ## train a small model while workers are killed and join
	@echo "demo: a small model trains while its workers come and go"
	@$(BIN)/python -m examples.stdlib_gpt.demo

test: lint etcd ## check style and types, run the tests
	@echo "test: the tests that are not slow, two at a time; then those that measure time, alone"
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not alone"
	@$(BIN)/python -m pytest -m "alone and not slow"

test-all: lint etcd ## the same with the slow tests
	@echo "test-all: every test, the slow ones too"
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m "not alone"
	@$(BIN)/python -m pytest -m alone

lint: $(READY) ## check style and types only
	@echo "lint: ruff, then mypy"
	@$(BIN)/ruff check .
	@$(BIN)/mypy

etcd: $(READY) ## fetch etcd for the tests, unless it is on the path
	@tests/etcd/install.sh $(VENV)/etcd

bench: $(READY) ## measure against the peers, side by side
	@echo "bench: ratios to the peers, measured in one run"
	@$(BIN)/python -m benchmarks

clean: ## remove the environment and all caches
	@echo "clean: .venv, build output and caches go"
	@rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): setup.cfg pyproject.toml constraints.txt
	@echo "setup: installing into $(VENV) (once; a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "setup: $(PYTHON) is too old, 3.11 is needed; name another one: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "setup: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) setuptools
	@$(PIP_INSTALL) --no-build-isolation --editable '.[test]'
	@touch $(READY)
