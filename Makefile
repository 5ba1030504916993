# `make demo` and `make test` set up what is missing first: only Python 3.11 or later, make and git are assumed.
.DEFAULT_GOAL := help
.PHONY: help demo test tests thorough check format browser faults bench blocks automations lock clean

PYTHON := .venv/bin/python
STAMP := .venv/ready

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

demo: $(STAMP)  ## run the CI runbook on a small repository, on a local Prefect server
	@$(PYTHON) deployments/demo.py

# Processes that tests start, and pytest itself, should not compile what they import anew each time.
export PYTHONDONTWRITEBYTECODE :=

# More processes than cores: many tests wait for others. tests/conftest.py says which of them share one.
test: $(STAMP)  ## check, and run the tests beside that
	@$(MAKE) --no-print-directory --jobs=2 check tests

tests:
	@$(PYTHON) -m pytest --numprocesses 4 --no-loadscope-reorder

thorough: $(STAMP)  ## the tests of corners: gates on PostgreSQL, servers that hang, workers that are given back, more of each kind
	@$(PYTHON) -m pytest -m thorough --numprocesses 4 --no-loadscope-reorder

check: $(STAMP)  ## lint, formatting and types
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m basedpyright --pythonpath $(PYTHON)

format: $(STAMP)  ## mend what lint and formatting can mend by themselves
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

browser: $(STAMP)  ## answer gates in Prefect's UI with Chromium; keeps what it sees in screenshots/
	@$(PYTHON) -m pytest tests/browser -m "not benchmark" --screenshots screenshots

# On both databases, on two cores; a violation is shown with what replays it.
faults: $(STAMP)  ## kill runs N times (1000) at every place where it matters, race N/2 times, from SEED on, and compare with the world
	@$(PYTHON) -m tests.faults N=$(N) SEED=$(SEED) REPLAY=$(REPLAY)

bench: $(STAMP)  ## measure against hand-written Prefect flows
	@$(PYTHON) -m pytest tests/benchmarks -m benchmark -s -n 0

blocks: $(STAMP)  ## create or update the Prefect blocks that the deployments use
	@$(PYTHON) -m blocks

automations: $(STAMP)  ## tell people of open gates: BLOCK=type/name (a notification block) AFTER=minutes (until a reminder)
	@$(if $(BLOCK),,echo "say by which notification block: make automations BLOCK=type/name, as in slack-webhook/oncall" >&2; exit 2)
	@$(PYTHON) -m deployments.automations --block $(BLOCK) $(if $(AFTER),--after $(AFTER))

lock:  ## pin the newest versions that pyproject.toml allows
	@.ci/setup lock

clean:  ## remove the virtual environment and everything generated
	rm -rf .venv dist .pytest_cache .ruff_cache .hypothesis screenshots
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock .ci/setup
	@.ci/setup install
