# Everything runs from .venv, which is built from pyproject.toml and the constraints when it is missing or older than they are.
# `make repro` trains the default model; `make repro PRESET=NAME` applies a preset first; `make test`, `make test-faults` and
# `make test-cluster` check the whole thing, `make test-fast` most of the code in a minute.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# The first of the supported versions that runs here.
PYTHON ?= $(shell for version in 3.11 3.12 3.13; do python$$version -c "" 2>/dev/null && echo python$$version && exit; done; echo python3)
# The build of torch: pypi, or a name of uv's --torch-backend such as cpu or cu126 (docs/usage.md). Empty: the one that fits.
TORCH ?=
UV_VERSION := 0.13.8
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export MLFLOW_DISABLE_TELEMETRY := true
export RAY_USAGE_STATS_ENABLED := 0
# Use this checkout's environment, whatever the shell had active.
unexport VIRTUAL_ENV
unexport PYTHONPATH

.PHONY: help setup wheel preset repro data test test-fast test-faults test-cluster test-gpu upload submit package bench docs lint format clean constraints

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 22

setup: .venv/.complete  ## build .venv

# PyPI's build for Linux needs driver 580. For older drivers from 525 on, uv takes the newest CUDA that they run.
define fitting_torch
case "$$(uname)/$$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)" in \
	Linux/52[5-9].* | Linux/5[3-7]?.*) torch=auto ;; \
	Linux/[34]??.* | Linux/5[01]?.* | Linux/52[0-4].* | Linux/[!0-9]* | Linux/) torch=cpu ;; \
	*) torch=pypi ;; \
	esac
endef

# uv does not read pip's configuration, so pass on where pip looks for packages. Where that is configured, it decides which torch there
# is. Only PyPI's torch comes with constraints-cuda.txt: other builds have other files and other CUDA packages.
# Compile once, here: uv does not by itself. Where PYTHONDONTWRITEBYTECODE is set (most images), every process that Ray starts for a
# training run would otherwise compile Ray again, and every worker torch.
define install
	links="$${PIP_FIND_LINKS:-$$(.venv/bin/pip config get global.find-links 2>/dev/null)}"; \
	index="$${PIP_INDEX_URL:-$$(.venv/bin/pip config get global.index-url 2>/dev/null)}"; \
	torch="$(TORCH)"; \
	if [ -z "$$torch$$links$$index" ]; then $(fitting_torch); fi; \
	case "$$torch" in \
		"") build= ;; \
		pypi) build="--constraint constraints-cuda.txt"; links= ;; \
		*) build="--torch-backend $$torch" ;; \
	esac; \
	echo "Installing packages; torch: $${torch:-from where pip is configured to look}."; \
	$${links:+env UV_FIND_LINKS="$$links"} $${index:+env UV_INDEX_URL="$$index"} \
		.venv/bin/uv pip install --quiet --python $(1) --constraint constraints.txt $$build $(2)
endef
comma := ,
packages = $(call install,.venv,--compile-bytecode --editable '.[$(1)]')

# The stamp comes last: an interrupted installation is done again.
.venv/.complete: pyproject.toml constraints.txt constraints-cuda.txt
	rm -rf .venv
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "Python 3.11 to 3.13 is needed: make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet uv==$(UV_VERSION)
	@$(call packages,dev)
	touch $@

# What the benchmarks measure against.
.venv/.bench: .venv/.complete
	@$(call packages,dev$(comma)bench)
	touch $@

# What builds the site of the pages.
.venv/.docs: .venv/.complete
	@$(call packages,dev$(comma)docs)
	touch $@

# With what a model needs to answer, and with what EXTRAS name.
wheel: setup  ## the package as a wheel in build/wheel, and an environment that has it alone
	rm -rf build/wheel
	.venv/bin/uv build --quiet --wheel --out-dir build/wheel
	.venv/bin/python -m venv --without-pip build/wheel/env
	@$(call install,build/wheel/env,$$(echo build/wheel/*.whl)$(if $(EXTRAS),[$(EXTRAS)]))

preset: setup  ## write a preset into params.yaml: make preset NAME=quick (or another file in presets/)
	gausscse preset $(NAME)

repro: setup  ## run the pipeline (with PRESET=name: switch to that preset first)
	$(if $(PRESET),gausscse preset $(PRESET))
	gausscse check
	dvc repro

data: setup  ## how to get the official corpora, with sizes and licences
	@gausscse corpora

PYTEST := OMP_NUM_THREADS=1 python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder --durations 20

# With COVERAGE=1 the lines of pipeline/ that ran in the tests' own processes are counted; pyproject.toml has the floor.
test: setup  ## the tests, except the long ones of test-faults: make test [COVERAGE=1]
	$(PYTEST) -m 'not faults and not cluster and not gpu' $(if $(COVERAGE),--cov pipeline)

test-fast: setup  ## the tests that start no Ray, DVC, server or browser, for the time between two edits
	$(PYTEST) -m 'not faults and not cluster and not gpu and not slow'

# ROUNDS=3 is what CI runs once a week: every fault on the cluster at three points, and the tests marked weekly.
ROUNDS ?= 1
not_weekly = $(if $(filter 1,$(ROUNDS)), and not weekly)

# Only root can make hosts. Without root these tests are skipped with a reason; with GAUSSCSE_REQUIRE_HOSTS they fail.
test-cluster: setup  ## the pipeline and its faults on a Ray cluster of several hosts (network namespaces): make test-cluster [ROUNDS=3]
	GAUSSCSE_ROUNDS=$(ROUNDS) python -m pytest -m 'cluster$(not_weekly)' tests/cluster --durations 10

# Without a GPU these tests are skipped with a reason; with GAUSSCSE_REQUIRE_GPU they fail.
test-gpu: setup  ## training on a CUDA GPU: against the CPU, first run, resume, NCCL, memory, no waiting of the host
	python -m pytest -m gpu tests/gpu -rs --durations 10

# The inputs of stages go into cluster.storage; inputs.json travels with the code and says which data that was.
upload: setup  ## send the prepared data to cluster.storage, for jobs that are submitted by hand
	gausscse submit --upload

submit: setup  ## upload, then submit a stage: make submit STAGE=tune|train|evaluate|experiment
	@gausscse submit $(STAGE)

package: setup  ## the files that a job needs, as gausscse.zip (deploy/kuberay/job.yaml)
	gausscse submit --package

# Two at a time: each waits much, for restarts and timeouts.
FAULTS ?= tests/cli tests/data tests/distributed tests/evaluation tests/gpu tests/inference tests/registry tests/serving tests/stages tests/tracking tests/trials
PROCESSES ?= 2
test-faults: setup  ## the long tests: grids, stages and a registry are killed or find the disk full; damaged files; DVC's commands; real transfer tasks; pipelines of other objectives; the commands of docs/usage.md; of docs/tutorials too [ROUNDS=3]
	OMP_NUM_THREADS=1 python -m pytest -m 'faults and not gpu$(not_weekly)' $(FAULTS) --numprocesses $(PROCESSES) --dist loadfile --durations 20

bench: .venv/.bench  ## measure against plain code and sentence-transformers: make bench [NAME=training] [QUICK=1]
	$(if $(QUICK),OMP_NUM_THREADS=1) python -m bench $(if $(QUICK),--quick) $(NAME)

docs: .venv/.docs  ## build the pages of docs/ as a site in build/site; a broken link is an error
	gausscse reference
	NO_MKDOCS_2_WARNING=1 mkdocs build --strict --quiet
	python -m pytest tests/site.py

# The versions of Python that types are checked for; each takes minutes.
TYPES_FOR ?= 3.11 3.12 3.13
lint: setup  ## ruff, pyright and the order of imports
	ruff check .
	ruff format --check .
	for version in $(TYPES_FOR); do pyright --pythonversion $$version || exit; done
	lint-imports --no-cache

format: setup  ## let ruff rewrite what it can
	ruff check --fix .
	ruff format .

# torch's builds are different files at each source, so constraints.txt has no hash of torch; constraints-cuda.txt has those of PyPI's.
cuda := /^[a-z]/ { cuda = /^(cuda-|nvidia-|torch==|triton==)/ }
constraints: setup  ## pin every dependency to its newest version (constraints.txt, constraints-cuda.txt)
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --upgrade --generate-hashes \
		--constraint <(echo torch==2.13.0) --no-annotate --no-header --quiet --output-file .venv/constraints.new
	awk '$(cuda) cuda' .venv/constraints.new > constraints-cuda.txt
	awk '$(cuda) /^torch==/ { print $$1 } !cuda' .venv/constraints.new > constraints.txt

clean:  ## remove the environment, results, checkpoints and the local MLflow (not your data)
	rm -rf .venv .gausscse build docs/parameters.md data models results report mlflow.db mlartifacts .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
