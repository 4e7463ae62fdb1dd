# make demo    watch a run survive kills, time limits and a torn checkpoint
# make gateway-demo  watch requests of a web application be answered in spite of kills
# make test    everything: lint, types, all tests
# make check   the quick loop: lint, types, unit tests, simulation
# make storm   crash and freeze real schedulers, 50 times each, and kill scripts while they save; 1,000 requests
#              while broker, gateway and jobs are killed; about an hour
# make attack  kill, freeze, remove and lie at random on every cluster; about an hour
# make bench   tables of speed and memory, compared with other tools in the same run

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2
# Most tests on real clusters wait for a scheduler: one worker for each scheduler, and two for the rest.
WORKERS_WITH_CLUSTERS ?= 5
# An environment that is active in the terminal must not leak into this one.
unexport VIRTUAL_ENV PYTHONHOME PYTHONPATH

# In CI everything is tested. Elsewhere PyTorch (gigabytes on most machines), the frameworks and the
# benchmarks are tested only if they are installed.
TEST_NEEDS := $(VENV)/.dev $(if $(CI),$(VENV)/.torch $(VENV)/.frameworks $(VENV)/.bench)

.PHONY: demo gateway-demo test check storm attack lint types bench lock clean

demo: $(VENV)/.demo
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/outlast demo
	@echo "(in this directory, \`. $(BIN)/activate\` puts \`outlast\` on your PATH)"

gateway-demo: $(VENV)/.gateway
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/outlast gateway demo tests/clusters/rabbitmq
	@echo "(in this directory, \`. $(BIN)/activate\` puts \`outlast\` on your PATH)"

test: lint types $(TEST_NEEDS)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS_WITH_CLUSTERS) --dist loadscope tests

check: lint types
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" tests/unit tests/simulation

storm: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" OUTLAST_STORM=50 $(BIN)/python -m pytest -n $(WORKERS_WITH_CLUSTERS) --dist loadscope tests/contract -k "storm"
	PATH="$(abspath $(BIN)):$$PATH" OUTLAST_SNAPSHOT_KILLS=100 $(BIN)/python -m pytest -n $(WORKERS) tests/unit/snapshots/test_kills_while_saving.py tests/integration/test_killed_saves.py
	PATH="$(abspath $(BIN)):$$PATH" OUTLAST_GATEWAY_STORM=1000 OUTLAST_GATEWAY_FREEZE=120 $(BIN)/python -m pytest tests/crash/test_gateway_storm.py tests/integration/test_gateway_faults.py
	PATH="$(abspath $(BIN)):$$PATH" OUTLAST_GATEWAY_REQUESTS=20 $(BIN)/python -m pytest tests/contract/test_gateway_on_every_cluster.py

attack: $(VENV)/.dev
	PATH="$(abspath $(BIN)):$$PATH" OUTLAST_ATTACK_WALKS=40 OUTLAST_ATTACK_SECONDS=45 $(BIN)/python -m pytest -n $(WORKERS_WITH_CLUSTERS) --dist loadscope tests/attack

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

# The benchmarks fetch from the servers of the tests.
bench: $(VENV)/.dev $(VENV)/.bench $(VENV)/.frameworks
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/run.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/clusters.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/reading.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/transfers.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/checkpoints.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/snapshots.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/images.py
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python benchmarks/gateway.py

# Without torch and the packages of its builds: the right build depends on the machine.
lock: $(VENV)/.dev $(VENV)/.bench $(VENV)/.frameworks
	$(BIN)/pip freeze --exclude-editable | grep -v -e "^torch==" -e "^nvidia-" -e "^triton" > constraints.txt

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.demo $(VENV)/.gateway $(VENV)/.dev $(VENV)/.bench $(VENV)/.torch $(VENV)/.frameworks: $(VENV)/.%: pyproject.toml constraints.txt | $(VENV)/.made
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

$(VENV)/.made:
	@PYTHON="$(PYTHON)" scripts/make-venv "$(VENV)"
	@touch $@
