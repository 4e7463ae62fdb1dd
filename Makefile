# make demo    see a training outlast kills, limits and a torn checkpoint
# make test    everything: lint, types, all tests
# make check   the quick loop: lint, types, unit tests, simulation
# make bench   tables of speed and memory, next to a peer in the same run

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# A terminal that activated another environment must not leak into this one.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

# In CI nothing may be left out; elsewhere PyTorch (gigabytes for most machines) is tested where it is installed.
TEST_NEEDS := $(VENV)/.dev $(if $(CI),$(VENV)/.torch)

.PHONY: demo test check lint types bench lock clean

demo: $(VENV)/.demo
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/outlast demo
	@echo "(in this directory, \`. $(BIN)/activate\` makes \`outlast\` known to your shell)"

# The simulation has the machine to itself: it uses all cores by its own processes.
test: lint types $(TEST_NEEDS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest tests/simulation
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --ignore tests/simulation tests

check: lint types
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" tests/unit tests/simulation

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

bench: $(VENV)/.bench
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/run.py

lock: $(VENV)/.dev $(VENV)/.bench
	$(BIN)/pip freeze --exclude-editable > constraints.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.demo $(VENV)/.dev $(VENV)/.bench $(VENV)/.torch: $(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

$(VENV)/.made:
	@PYTHON="$(PYTHON)" scripts/make-venv "$(VENV)"
	@touch $@
