# Every target is complete on a fresh machine: it makes the virtual environment and installs first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests start many processes: from bytecode, even where the environment forbids to write it.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test coverage test-kill test-pages test-slow test-gpu test-slurm bench docs dist clean

demo: $(READY)
	$(BIN)/ithbit demo

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2

# The tests again, slower, with the lines they reach; fails below the floor in pyproject.toml. What
# worker processes of a sweep run is not counted.
coverage: $(READY)
	$(BIN)/pytest -q -n 2 --timeout 600 --cov --cov-report=term

# Two minutes: a sweep killed twenty times, and two sweeps on one store, against a quiet one.
test-kill: $(READY)
	$(BIN)/pytest -q -m slow --timeout 900 tests/sweeps/test_kill.py

# Two minutes: models in the explorable page against PyTorch, 2,000 inputs each, in Chromium.
test-pages: $(READY)
	$(BIN)/pytest -q -m slow --timeout 900 tests/explorer -k "two_thousand and not shipped"

# An hour or more on a CPU: every cell of the main table at n = 8 trained anew, among others.
test-slow: $(READY)
	$(BIN)/pytest -q -m slow --timeout 3600

# Several processes: most of the time kernels are compiled, once for every shape of the grid.
test-gpu: $(READY)
	$(BIN)/pytest -q -n 4 -m gpu --timeout 3600

test-slurm: $(READY)
	$(BIN)/pytest -q -m slurm --timeout 900

bench: $(READY)
	$(BIN)/ithbit bench --n 8 --n 64

# The site in build/site, with a notebook that is run; a warning is an error.
docs: $(VENV)/.ready-docs
	rm -rf build/site
	$(BIN)/python -m sphinx -q -W --keep-going -c docs . build/site

$(VENV)/.ready-docs: $(READY)
	$(PIP) -e '.[docs]'
	touch $@

# Sdist and wheel in dist/, installed and tried outside the checkout; a minute after `make demo`.
dist: $(READY)
	rm -rf dist
	$(BIN)/python -m build --no-isolation --outdir dist > $(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; false; }
	$(BIN)/python .ci/try_wheel.py dist

# torch first and by its exact version: a range would bring gigabytes of CUDA to a machine without.
# A torch for CUDA brings the triton it was made with; the pinned one is for a torch without.
PINS := $(VENV)/constraints.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c $(PINS)
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	grep -v '^triton==' constraints.txt > $(PINS)
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(BIN)/pip show --quiet triton 2> /dev/null || cp constraints.txt $(PINS)
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist src/*.egg-info .coverage .pytest_cache .mypy_cache .ruff_cache
