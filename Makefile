# Every target works on a fresh clone: ./run makes the environment first.
PY := .venv/bin/python
SOURCES := agentops workers runs quotas

.PHONY: help up test test-fast conformance mutants soak scale screenshots check lint format lock ensure

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

up: ## everything on this machine (flags: ARGS="--port 8001 --no-model")
	@./run up $(ARGS)

test: ## the whole test suite (arguments for pytest: ARGS="-k ledger")
	@./run test $(ARGS)

test-fast: ## without worker processes and browser
	@./run test -m "not process and not browser" $(ARGS)

conformance: ## the conformance tests on every kind of Redis server beside every database
	@./run test --conformance $(ARGS)

mutants: ensure ## each rule of the protocol taken out in turn: the test named for it must fail (ARGS="--list")
	$(PY) -m tests.mutants $(ARGS)

soak: ensure ## the trials of full size, about half an hour, and what they measured (ARGS="--db=postgres --redis=redis7")
	$(PY) -m pytest tests/soak -m soak -n 0 $(ARGS)

scale: ensure ## a million runs in a PostgreSQL of its own: how long each page takes, and its SQL (ARGS="--runs 100000 --dead 10000")
	$(PY) -m tests.scale $(ARGS)

screenshots: ensure ## take the pictures of docs/console.md anew (needs Chromium)
	$(PY) -m pytest tests/browser/screenshots.py -n 0 $(ARGS)

# Nothing below looks at an instance: neither its database nor its key.
check: export DATABASE_URL := sqlite:///:memory:
check: export AGENTOPS_SECRET_KEY := only-for-make-check
check: lint ## everything that needs no tests: style, types, layers, migrations, templates, spelling, locks
	$(PY) -m mypy $(SOURCES)
	.venv/bin/lint-imports
	$(PY) manage.py check --fail-level ERROR
	$(PY) manage.py makemigrations --check --dry-run
	$(PY) -m djlint templates --lint --quiet
	$(PY) -m codespell_lib
	.ci/locks check

lint: ensure ## ruff alone
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: ensure ## rewrite the sources in the common format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

lock: ensure ## compile the requirements*.in into hashed locks (newer releases: ARGS=--upgrade)
	.ci/locks write $(ARGS)

ensure:
	@./run ensure-dev
