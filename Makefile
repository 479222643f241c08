# `make run` serves, `make test` tests; both set up what they need. PYTHON names a Python 3.11 (or newer) interpreter.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
CONFIG ?= cluster_configs/laptop.yaml
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
export OMP_NUM_THREADS ?= 1

.PHONY: help setup run test faults test-cluster-ssh check format proto bench bench-pool record-oracle clean

help:
	@echo "make run            serve SmolLM2-135M-Instruct on http://127.0.0.1:8000 (PORT=, CONFIG= change that)"
	@echo "make test           run the tests"
	@echo "make faults         stop, kill and cut off real processes; the table of docs/failures.md"
	@echo "make test-cluster-ssh  ray up over SSH on hosts of this machine, serve deploy, ray down (root)"
	@echo "make check          lint, types, import law"
	@echo "make bench          measure ar, sd and ssd on this machine (PROMPTS=FILE.jsonl)"
	@echo "make bench-pool     load one draft with many replayed targets: capacity, sharing, overload, latency (10 minutes)"
	@echo "make setup          everything a developer needs in .venv"

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no python3.11 found: install it or name one with PYTHON=/path/to/python3.11" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is too old: Python 3.11 or newer is needed, name one with PYTHON=" >&2; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing ssd-cluster into $(VENV) (first time: some minutes)"
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/.runtime
	$(INSTALL) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.dev
	@test ! -d .git || $(BIN)/pre-commit install >/dev/null

run: $(VENV)/.runtime
	@exec $(BIN)/ssd-cluster serve $(CONFIG) $(if $(PORT),--port $(PORT))

test: $(VENV)/.dev
	$(BIN)/python -m pytest

# ONLY="link-cut restart" runs and prints some of them
faults: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.faults $(if $(ONLY),--only $(ONLY),--write docs/failures.md)

test-cluster-ssh: $(VENV)/.dev
	PYTHONPATH=tests $(BIN)/python -m support.ssh_cluster

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.dev
	$(BIN)/python -m ssd_cluster.link.generate

PROMPTS ?= tests/data/prompts.jsonl
bench: $(VENV)/.runtime
	$(BIN)/ssd-cluster bench --modes ar,sd,ssd --prompts $(PROMPTS) --limit 20 --max-tokens 128 --temperature 0 --batch 1 --json out/bench.json

bench-pool: $(VENV)/.runtime
	$(BIN)/ssd-cluster bench pool --record out/outcomes.json --prompts $(PROMPTS) --limit 24 --max-tokens 96 --temperature 0,1
	$(BIN)/ssd-cluster bench pool --outcomes out/outcomes.json --json out/pool.json --plot out/pool.png

record-oracle: $(VENV)/.dev
	$(BIN)/python tests/support/record_oracle.py tests/data/oracle_smollm2.json

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
