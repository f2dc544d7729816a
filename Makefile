# Everyday commands. `make demo` and `make test` set everything up themselves.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The number of test processes; each uses one thread.
JOBS ?= 2
# Many of the slow tests wait for processes of their own.
SLOW_JOBS ?= 3
# Tests start many processes: each would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-slow test-faults test-browser pages docs lint format types check clean

# Two stamps, so that the demo does not wait for the test tools.
$(VENV)/installed: pyproject.toml constraints.txt $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed paper/pyproject.toml
	# The library is there already: nothing of it is built again.
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "geof[dev]" \
		--editable "./paper[figures,ray]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/geof demo

test: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadscope

# A module's tests take turns: many of them use all cores, or share what takes long to make. Modules
# come in their order: those with few tests, last otherwise, are the longest here. Triton's kernels run
# in its interpreter.
test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "geof[triton]"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n $(SLOW_JOBS) --dist loadscope \
		--no-loadscope-reorder --durations 15

# Every point instead of a few, in one process, which says at the end how many tries there were.
test-faults: $(VENV)/installed-dev
	GEOF_FAULTS=all OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults

# What is written from the records of paper/results: commit records and pages together.
pages: $(VENV)/installed-dev
	$(BIN)/geof results render
	$(BIN)/geof results methods
	$(BIN)/geof reproduce page --renew

# Every page, link and docstring is checked.
docs: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "geof[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# Chromium is Debian's; one that is there already, or named by $CHROMIUM, is used instead.
test-browser: $(VENV)/installed-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt "geof[browser]"
	@test -n "$$CHROMIUM" \
		|| { for name in chromium chromium-browser google-chrome google-chrome-stable; do \
			command -v $$name && break; done > /dev/null; } \
		|| { if [ "$$(id -u)" = 0 ]; then root=; else root=sudo; fi; \
			$$root apt-get update -qq && $$root apt-get install -y -qq chromium; }
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser paper/tests/browser

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

types: $(VENV)/installed-dev
	$(BIN)/mypy

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint types test

clean:
	rm -rf $(VENV) build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
