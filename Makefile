# `make test` is all that a change has to pass. It needs Python; with Docker's engine and root
# (see .ci/run for the packages) it also runs the container tests, else it skips them and says so.

PYTHON ?= python3
PYTEST_ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/installed

# Where bytecode is not kept, each of the many Prefect processes compiles Prefect anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv lint types test images demo chaos

help:
	@echo "make test    lint, types and all tests (PYTEST_ARGS='-k oom' narrows the tests)"
	@echo "make demo    three nodes and the main cases on this machine (KEEP=1, DOCKER=1, IMAGE=, PORT=)"
	@echo "make chaos   60 runs while workers, engine and server die, at most 15 minutes (SEED=)"
	@echo "make lint    ruff and the import rules"
	@echo "make types   mypy"
	@echo "make images  build the container tests' images into their cache (root, two minutes)"

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: venv
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases --exclude /job_flows/ tests/support
	$(BIN)/mypy --explicit-package-bases demo
	$(BIN)/mypy --explicit-package-bases chaos

test: lint types
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

images: venv
	$(BIN)/python -m tests.support.images

# It needs Python alone, and says so if that is too old. KEEP=1 leaves it up until Ctrl-C; DOCKER=1
# runs everything in containers of IMAGE.
demo:
	@$(PYTHON) demo/prepare.py
	@$(BIN)/python -m demo $(if $(KEEP),--keep) $(if $(DOCKER),--docker) $(if $(IMAGE),--image '$(IMAGE)') $(if $(PORT),--port '$(PORT)')

# Exit status 1 if a run was lost, done twice or left something behind. Without Docker's engine and
# root it has two nodes instead of three, and says so.
chaos: venv
	$(BIN)/python -m chaos --runs 60 --minutes 12 $(if $(SEED),--seed '$(SEED)')
