# Everything a contributor or the CI runs. `make` alone lists the targets.

PYTHON ?= python3
VENV ?= .venv
PYTEST_ARGS ?=
ENGINES_ARGS ?=
# Most tests wait for a server or a process rather than compute. A worker keeps to its part of the suite until another
# is idle: so it starts few kinds of servers.
JOBS ?= 4
PRODUCTS = $(addprefix tests/,outbox inbox topics relay ingest operate maintenance)

export PYTHON VENV
# Tests start hundreds of programs: each would compile the library anew.
unexport PYTHONDONTWRITEBYTECODE
BIN = $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help venv lock demo test roles dbt check site bench chaos storm journey replicas seams engines scale ga release clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: ## Create .venv (or VENV=...) with all extras; reruns only when pyproject.toml changed
	@scripts/bootstrap venv all,dev

lock: venv ## Write requirements-dev.txt anew: every development dependency, with its hashes
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url --generate-hashes \
		--custom-compile-command "make lock" --extra all --extra dev --output-file requirements-dev.txt pyproject.toml

demo: ## Show relaybox at work; needs Python, make and git only
	@scripts/bootstrap venv cli
	@$(BIN)/relaybox demo

test: venv ## Run the tests against real servers; fetches missing ones where it may
	@scripts/bootstrap servers
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PYTEST_ARGS)

roles: venv ## Run the suites of all products under a role of the database that owns nothing (PostgreSQL)
	@scripts/bootstrap servers
	@TEST_ROLES=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(PRODUCTS) $(PYTEST_ARGS)

dbt: venv ## Run the long tests of the dbt package: beside others, killed, refused (about three minutes)
	@scripts/bootstrap servers
	@TEST_DBT=1 $(BIN)/python -m pytest tests/feeds/test_dbt.py tests/feeds/test_dbt_trials.py $(PYTEST_ARGS)

check: venv ## Lint, formatting, types, import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict src
	$(BIN)/lint-imports

site: venv ## Build the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: venv ## Run the benchmarks
	@$(BIN)/python -m benchmarks

chaos: venv ## Run the crash and failure trials
	@$(BIN)/python -m chaos

storm: venv ## Relays and brokers killed at random, one trial for every broker (about half an hour)
	@$(BIN)/python -m chaos.relay --broker all

journey: venv ## From one service's transaction to another's, everything killed at random: 100,000 messages over each broker; resumes
	@$(BIN)/python -m chaos.end_to_end --broker all --resume

replicas: venv ## From a feed to its replicas, by Kafka and straight, everything killed at random; PostgreSQL, MySQL, SQLite; resumes
	@$(BIN)/python -m chaos.feed_to_replica --target all --resume

seams: venv ## Every fault, product and life event in pairs (about an hour); resumes where it stopped
	@$(BIN)/python -m chaos.seams

engines: venv ## Fetch the servers and Pythons people run, and run the suites that concern each; resumes (hours)
	@scripts/bootstrap servers
	@$(BIN)/python -m engines $(ENGINES_ARGS)

ga: venv ## The pre-release tests of topics, scaled to the machine (about a quarter of an hour); resumes where it stopped
	@$(BIN)/python -m ga

scale: venv ## Ten million finished rows, a million waiting ones: plan of the poll, memory of the drain
	@$(BIN)/python scripts/plan_10m.py
	@$(BIN)/python scripts/memory_1m.py
	@$(BIN)/python scripts/feed_memory_1m.py

release: venv ## Build and check what would be published, into dist/; with KEY=… signed
	@$(BIN)/python scripts/release.py $(if $(KEY),--sign $(KEY),--rehearse)

clean: ## Remove .venv, caches and build results
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
