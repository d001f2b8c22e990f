# The commands of developers and CI. A fresh machine needs only python3 (3.11 or newer), make and git: every target
# creates or updates .venv first, unless the locks and pyproject.toml are unchanged.

PYTHON ?= python3
ARGS ?=
SECONDS ?= 130

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# The version check, run by the checked interpreter.
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))

# Tests that start servers, clusters or fleets: with them `make test` would take more than two minutes.
SYSTEM := tests/benchmarks tests/chaos tests/clients tests/control/test_engine_metrics.py tests/control/test_fanout.py \
  tests/commands/test_main.py tests/sim/test_process.py tests/proxy/test_relays.py tests/proxy/test_token_budgets.py \
  tests/control/test_openapi_holds.py tests/control/test_workers.py tests/fleet \
  tests/downstream/test_bytes_at_the_socket.py tests/downstream/test_tls.py tests/prefork tests/performance/test_bounds.py \
  tests/performance/test_stalls.py tests/plugins tests/security tests/stores \
  tests/telemetry/test_through_the_gateway.py tests/commands/test_demo.py tests/proxy/test_drain.py tests/fleet/test_states_through_the_gateway.py \
  tests/proxy/test_hostile_worker.py tests/proxy/test_idle_connections.py tests/proxy/test_ids.py tests/proxy/test_load.py tests/proxy/test_query_of_death.py tests/process/test_server.py \
  tests/proxy/test_sticky.py tests/commands/test_workers.py

# Laws and measurements that take long: also part of make test-system, and run against the compiled build.
LONG := tests/contract/test_endpoints.py tests/contract/test_relayed.py tests/formats/test_join_cost.py tests/formats/json/test_steps.py tests/downstream/test_hostile.py \
  tests/downstream/test_unread.py \
  tests/sim/test_fuzz.py tests/proxy/test_handler_ends.py tests/proxy/test_races.py tests/formats/json/test_blanked.py

# Measures how long small requests wait beside large ones, so it must not share the cores with other tests.
ALONE := tests/chaos/test_big_bodies.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-system silence chaos soak fuzz mutants check audit format bench test-engines compile \
  test-compiled lock clean
.DELETE_ON_ERROR:

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

install: $(STAMP) ## create or update .venv from the hash-pinned lock, the package in it editable

$(STAMP): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
	  echo "error: Python 3.11 or newer is needed, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "       name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo 'installing into $(VENV); the next run does not repeat this'
	@$(BIN)/python -c '$(NEW_ENOUGH)' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP) ## four simulated workers and the gateway on 127.0.0.1:8000; ARGS="--port N"; Ctrl-C ends it
	@$(BIN)/tito-gateway demo $(ARGS)

test: $(STAMP) ## the test suite without test-system and test-engines; ARGS="-k words" narrows it
	@$(BIN)/pytest $(SYSTEM:%=--ignore=%) $(LONG:%=--ignore=%) $(ARGS)

test-system: $(STAMP) ## tests with servers of their own: fleet, stores, processes, clients, load, benchmarks
	@$(if $(ARGS),,$(BIN)/pytest -n 0 $(ALONE))
	@$(if $(ARGS),,$(BIN)/pytest --hypothesis-profile=long tests/contract/test_formats.py)
	@$(BIN)/pytest $(SYSTEM) $(LONG) $(if $(ARGS),,--ignore=$(ALONE)) $(ARGS)

silence: $(STAMP) ## an engine that is silent for SECONDS (130) before it answers
	@$(BIN)/pytest -n 4 --timeout 0 --silence $(SECONDS) tests/chaos/test_silence_is_no_end.py $(ARGS)

fuzz: $(STAMP) ## hostile bytes from clients and from workers for 10 seconds; ARGS="--minutes 5"
	@$(BIN)/python -m tests.fuzz $(ARGS)

mutants: $(STAMP) ## insert 64 seeded faults, one at a time, and see whether a test fails; ARGS="--seed N --count N"
	@mkdir -p build
	@$(BIN)/python -m scripts.mutants --seed 12 --count 64 --out build/mutants.json $(ARGS)

check: $(STAMP) ## lint, formatting, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m scripts.import_rules

audit: $(STAMP) ## licences and known vulnerabilities of all installed packages; ARGS="--or-say-so"
	@$(BIN)/python -m scripts.audit $(ARGS)

format: $(STAMP) ## rewrite files to the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## the gateway's cost beside other routers, in a minute; ARGS="--full" for all measurements
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: $(STAMP) ## a minute of faults and misbehaving clients, and a check of all records; ARGS="--minutes N --seed S --processes P"
	@$(BIN)/python -m tests.chaos.run $(ARGS)

soak: $(STAMP) ## 1,000 streams for 10 minutes: memory, files and lag must stay flat; ARGS="--minutes N"
	@$(BIN)/python -m tests.chaos.run.soak $(ARGS)

test-engines: $(STAMP) ## the gateway in front of real SGLang and vLLM, on the CPU (first time: 7 GB)
	@scripts/test-engines $(BIN)/python $(ARGS)

compile: $(STAMP) ## a wheel with the hot modules compiled to C, in build/dist
	@rm -rf build/dist build/compiled && mkdir -p build
	@HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 $(BIN)/python -m hatchling build --target wheel --directory build/dist \
	  2>build/compile.log || { tail -n 40 build/compile.log >&2; exit 1; }
	@$(BIN)/python -m zipfile --extract build/dist/*.whl build/compiled
	@echo "the compiled wheel: $$(ls build/dist/*.whl)"
	@echo "unpacked: build/compiled"

# Safe path: the sources in this folder must not be imported before the compiled modules.
test-compiled: ## make test and the long laws against the last compiled build; ARGS="-k words" narrows it
	@test -d build/compiled || $(MAKE) compile
	@PYTHONSAFEPATH=1 PYTHONPATH=$(CURDIR)/build/compiled:$(CURDIR) $(BIN)/pytest -o pythonpath= --compiled \
	  $(SYSTEM:%=--ignore=%) $(ARGS)

lock: ## resolve the three locks again from pyproject.toml
	scripts/lock $(PYTHON)

clean: ## remove all files that the targets made in this folder
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
