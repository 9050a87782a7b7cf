# Everything runs from .venv, which is built from pyproject.toml and constraints.txt when it is missing or older than they are.
# `make repro` trains the default model; `make repro PRESET=files` switches the preset first; `make test`, `make test-faults` and
# `make test-cluster` check the whole thing.

SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3.11
UV_VERSION := 0.13.8
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export RAY_USAGE_STATS_ENABLED := 0
# The environment is this checkout's, wherever the shell stood before.
unexport VIRTUAL_ENV
unexport PYTHONPATH

.PHONY: help setup preset repro data test test-faults test-cluster upload submit package bench mutants lint format clean constraints

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 22

setup: .venv/.complete  ## build .venv

# Compiled once, here: uv does not by itself, and where PYTHONDONTWRITEBYTECODE is set (most images) each of the four processes that
# Ray starts for a training run would compile torch and Ray anew.
define install
	links="$${PIP_FIND_LINKS:-$$(.venv/bin/pip config get global.find-links 2>/dev/null)}"; \
	index="$${PIP_INDEX_URL:-$$(.venv/bin/pip config get global.index-url 2>/dev/null)}"; \
	$${links:+env UV_FIND_LINKS="$$links"} $${index:+env UV_INDEX_URL="$$index"} \
		.venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python --constraint constraints.txt --editable '.[$(1)$(if $(2),$(comma)$(2))]'
endef
comma := ,

# uv does not read pip's configuration: hand on where pip looks for packages. The stamp comes last, so that a broken-off
# installation is done again.
.venv/.complete: pyproject.toml constraints.txt
	rm -rf .venv
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet uv==$(UV_VERSION)
	$(call install,dev)
	touch $@

# What the benchmarks measure against.
.venv/.bench: .venv/.complete
	$(call install,dev,bench)
	touch $@

# What mutation testing needs.
.venv/.mutants: .venv/.complete
	$(call install,dev,mutants)
	touch $@

preset: setup  ## write a preset into params.yaml: make preset NAME=quick|files|recommended|ablation|paper
	python -m pipeline.preset $(NAME)

repro: setup  ## run the pipeline (with PRESET=name: switch to that preset first)
	$(if $(PRESET),python -m pipeline.preset $(PRESET))
	python -m pipeline.check
	dvc repro

data: setup  ## how to get the official corpora, with sizes and licences
	@python -m pipeline.data.corpora

test: setup  ## the tests, but for the long ones of test-faults
	OMP_NUM_THREADS=1 python -m pytest -m 'not faults and not cluster' --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

# Root alone may make hosts; without it these are skipped with a reason, and with GAUSSCSE_REQUIRE_HOSTS they fail.
test-cluster: setup  ## the pipeline on a Ray cluster of several hosts (network namespaces), and all that can die there (three quarters of an hour on two cores)
	python -m pytest -m cluster tests/cluster --durations 10

# What stages read goes into cluster.storage, and inputs.json, which travels with the code, says what that was.
upload: setup  ## send the prepared data to cluster.storage, for jobs that are submitted by hand
	python -m pipeline.upload

submit: setup  ## upload, then submit a stage by `ray job submit`: make submit STAGE=tune|train|evaluate|experiment
	@python -m pipeline.submit $(STAGE)

package: setup  ## what a job needs of the project, inputs.json too, as gausscse.zip (deploy/kuberay/job.yaml)
	python -m pipeline.package

# One after the other: each takes the whole machine.
FAULTS ?= tests/distributed tests/registry tests/stages
test-faults: setup  ## grids, ablations, stages and a registry that are killed, or find the disk full; docs/usage.md
	OMP_NUM_THREADS=1 python -m pytest -m faults $(FAULTS) --durations 5

bench: .venv/.bench  ## measure against plain code and sentence-transformers (one: make bench NAME=training; only see that they run: make bench QUICK=1)
	$(if $(QUICK),OMP_NUM_THREADS=1) python -m bench $(if $(QUICK),--quick) $(NAME)

mutants: .venv/.mutants  ## change a line here and there and see whether a test notices: make mutants [NAME="metrics search"]; docs/mutants.md
	OMP_NUM_THREADS=1 python tests/mutants.py $(NAME)

lint: setup  ## ruff and pyright
	ruff check .
	ruff format --check .
	pyright

format: setup  ## let ruff rewrite what it can
	ruff check --fix .
	ruff format .

constraints: setup  ## pin every transitive dependency anew (constraints.txt)
	links="$${PIP_FIND_LINKS:-$$(pip config get global.find-links 2>/dev/null)}"; \
	$${links:+env UV_FIND_LINKS="$$links"} uv pip compile pyproject.toml --all-extras --python-version 3.11 --upgrade \
		--constraint <(echo torch==2.13.0) --no-annotate --no-header --quiet --output-file .venv/constraints.new
	sed 's/+cpu$$//' .venv/constraints.new > constraints.txt

clean:  ## remove the environment, results, checkpoints and the local MLflow (not your data)
	rm -rf .venv .gausscse data models results report mlflow.db mlartifacts .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
