# `make demo` and `make test` first set up what is missing. They need only Python 3.11 or later, make and git.
.DEFAULT_GOAL := help
.PHONY: help demo test tests thorough check format generated site browser faults simulate mutants agentdojo matrix newest release-check bench bench-once blocks lock clean

PYTHON := .venv/bin/python
STAMP := .venv/ready

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 20

demo: $(STAMP)  ## run the CI runbook on a small repository, on a local Prefect server
	@$(PYTHON) deployments/demo.py

# Let pytest and the processes that tests start keep compiled bytecode.
export PYTHONDONTWRITEBYTECODE :=

# More processes than cores, because many tests wait. tests/conftest.py says which tests share a process.
test: $(STAMP)  ## check, and run the tests at the same time
	@$(MAKE) --no-print-directory --jobs=2 check tests

tests:
	@$(PYTHON) -m compileall -q plan_adapter  # once, not in each process
	@$(PYTHON) -m pytest --numprocesses 4 --no-loadscope-reorder

thorough: $(STAMP)  ## run the tests of corner cases: gates on PostgreSQL, servers that hang, workers that are released, signals at gates
	@$(PYTHON) -m pytest -m thorough --numprocesses 4 --no-loadscope-reorder

check: $(STAMP)  ## check lint rules, formatting, links and types
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m tests.guide.links
	@$(PYTHON) -m basedpyright --pythonpath $(PYTHON)
	@$(PYTHON) -m basedpyright --pythonpath $(PYTHON) --project tests/pyrightconfig.json

format: $(STAMP)  ## fix lint and formatting problems that can be fixed automatically
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

generated: $(STAMP)  ## write the generated files again: the schema of plans, the references in the guide, the gate texts that tests compare, the catalogues of languages
	@$(PYTHON) -m plan_adapter.cli.app schema deployments/plan.schema.json
	@$(PYTHON) -m tests.guide
	@$(PYTHON) -m tests.gates
	@$(PYTHON) -m tests.language

site: $(STAMP)  ## build the site of the guide into site/; a dead link or a page without a place fails
	@$(PYTHON) -m sphinx --fresh-env --fail-on-warning --keep-going --quiet --conf-dir .ci/site . site
	@echo "open site/index.html"

browser: $(STAMP)  ## test gates in Prefect's UI with Chromium; screenshots go to screenshots/
	@$(PYTHON) -m pytest tests/browser -m "not benchmark" --screenshots screenshots

# Runs on both databases and two cores. A violation is printed with the command that replays it.
faults: $(STAMP)  ## kill runs N (1000) times at crash points, race them N/2 times from SEED on, and check their records; with GOALS=1, runs with goals; with HOSTS=20, rolling restarts over SSH and their connections
	@$(PYTHON) -m tests.faults N=$(N) SEED=$(SEED) GOALS=$(GOALS) HOSTS=$(HOSTS) REPLAY=$(REPLAY)

simulate: $(STAMP)  ## simulate RUNS (1000) runs on virtual time from SEED on, with faults and rivals; SEED alone prints one run
	@$(PYTHON) -m tests.simulation RUNS=$(RUNS) SEED=$(SEED) VARIANT="$(VARIANT)"

mutants: $(STAMP)  ## change the code of digests, permissions, leases and gates, one place at a time: a test has to fail. ONLY=text runs the modules with that name; JOBS=number of processes
	@$(PYTHON) -m tests.mutants ONLY=$(ONLY) JOBS=$(JOBS)

agentdojo: $(STAMP)  ## run all of AgentDojo's prompt injections against our gates, and write the table into the guide
	@$(PYTHON) -m tests.agentdojo

matrix: $(STAMP)  ## run the tests with each Python at hand and several versions of Prefect: an hour or more; ONLY=text runs the cells with that name
	@$(PYTHON) -m tests.matrix $(ONLY)

newest: $(STAMP)  ## run the tests that touch Prefect, the store, the model client and the readers with the newest packages
	@$(PYTHON) -m tests.matrix newest-packages

release-check: $(STAMP)  ## build sdist and wheel into dist/, install the wheel in an empty environment, and use it as documented
	@$(PYTHON) -m tests.release

bench-once: $(STAMP)  ## kill one approved call at each place, with this package and with the newest peers: about 10 minutes
	@$(PYTHON) -m tests.benchmarks.once KILLS=$(KILLS) PEER_KILLS=$(PEER_KILLS) SEED=$(SEED) ONLY=$(ONLY)

bench: $(STAMP)  ## measure against hand-written Prefect flows
	@$(PYTHON) -m pytest tests/benchmarks -m benchmark -s -n 0

blocks: $(STAMP)  ## create or update the Prefect blocks that the deployments use
	@$(PYTHON) -m blocks

lock:  ## pin the newest versions that pyproject.toml allows
	@.ci/setup lock

clean:  ## remove the virtual environment and everything generated
	rm -rf .venv .matrix dist site .pytest_cache .ruff_cache .hypothesis screenshots mutants
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml requirements.lock .ci/setup
	@.ci/setup install
