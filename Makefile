PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := python -m pip install --quiet --disable-pip-version-check
# Pinned versions, of Python 3.11; empty for others.
CONSTRAINTS := --constraint constraints.txt
INSTALL := $(BIN)/$(PIP) $(CONSTRAINTS)
LOWEST := benchmarks/.environments/lowest
TRACKERS := benchmarks/.environments/trackers
CLUSTERS := benchmarks/.environments/clusters
FLOWER := benchmarks/.environments/flower
TRANSFORMERS := benchmarks/.environments/transformers
BUILD := benchmarks/.environments/build
FRESH := benchmarks/.environments/fresh
SITE := benchmarks/.environments/site
# The version of PYTHON, such as 3.13; empty if there is no such interpreter.
VERSION = $(shell $(PYTHON) -c "import sys; print('%d.%d' % sys.version_info[:2])" 2> /dev/null)
OTHER = benchmarks/.environments/python-$(VERSION)
# Of `make test-python`; TORCH=no leaves torch out, and runs tests that need none.
TORCH := yes
ROOMS := tests/loops tests/callbacks tests/cli tests/results
ROOMS_WITHOUT_TORCH := tests/cli tests/results tests/report tests/verdict tests/checks tests/record tests/accounting
# Tests of `make lowest` and `make costs`, such as SELECT="tests/stats".
SELECT := tests
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses=2 --dist=worksteal
MEASURED := tests/.costs.jsonl

.PHONY: demo test lint fast heavy costs docs browser lowest test-python nightly bench bench-peers gpu dist clean

# The main job on real data: four trainings, three of them faulty. Ends with a table of reports.
demo: $(VENV)/.examples
	$(BIN)/python examples/digits.py --report-dir demo

# Everything that CI runs: the quick tests first, then the heavy ones, collected once.
test: $(VENV)/.dev lint
	$(PYTEST) --durations=15 -m "not nightly" tests
	OMP_NUM_THREADS=1 $(BIN)/pytest --quiet --doctest-modules lightning_audit --ignore=lightning_audit/transformers.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/build/english.py

fast: $(VENV)/.dev
	$(PYTEST) --durations=15 -m "not heavy" tests

heavy: $(VENV)/.dev
	$(PYTEST) -m "heavy and not nightly" tests

# CPU seconds of the tests, which decide on their stage: writes tests/costs.json.
costs: $(VENV)/.dev
	rm -f $(MEASURED)
	LIGHTNING_AUDIT_COSTS=$(MEASURED) $(PYTEST) -m "not nightly" $(SELECT)
	$(BIN)/python tests/support/costs.py $(MEASURED) $(if $(filter tests,$(SELECT)),--whole)

# The site, in .site/html: a link, an anchor or a name that does not exist is an error. Only the first
# call needs a network.
docs: $(SITE)/.dev
	$(SITE)/bin/python docs/build/build_site.py

# Pages of reports and of the site in headless Chromium, which is installed if this is root and the PATH has none.
browser: $(VENV)/.browser docs
	$(BIN)/python tests/support/chromium.py
	OMP_NUM_THREADS=1 $(BIN)/pytest --durations=5 -m browser tests/browser

# The quick tests with the lowest versions that pyproject.toml allows, torch apart.
lowest: $(LOWEST)/.dev
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest --numprocesses=2 --dist=worksteal -p no:cacheprovider -m "not heavy" $(SELECT)

# The quick tests of loops, callbacks, command line and results with another interpreter, in an
# environment of its version: make test-python PYTHON=python3.13 [TORCH=no]
test-python:
	@test -n "$(VERSION)" || { echo "no interpreter runs as '$(PYTHON)': name one, as in make test-python PYTHON=python3.13" >&2; exit 1; }
	$(MAKE) $(OTHER)/.$(if $(filter no,$(TORCH)),without-torch,dev)
	OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest --numprocesses=2 --dist=worksteal -p no:cacheprovider -m "not heavy" \
		$(if $(filter no,$(TORCH)),-p without_torch $(ROOMS_WITHOUT_TORCH),$(ROOMS))

# What takes too long for each change: simulations, figures and benchmarks at their whole size, the
# whole selftest, an exception in every function, mutants of checks and verdict, correct trainings of
# every kind. Writes docs/nightly.md and docs/mutants.md.
nightly: $(VENV)/.dev
	$(BIN)/python benchmarks/nightly.py

# Speed and detection figures, as ratios and counts of one run; they land in benchmarks/results.
bench: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run.py

# The selftest, the matrix of trainings, examples and overhead on the accelerator that torch has here;
# without one it says so. Writes benchmarks/results/gpu.json.
gpu: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/gpu.py

# The same data through other libraries, each in its own environment (benchmarks/.environments).
bench-peers: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/run.py peers

# The source archive and the wheel, and two audited epochs with the wheel in a fresh environment.
dist: $(BUILD)/.tools
	rm -rf dist
	$(BUILD)/bin/python -m build --outdir dist .
	$(BUILD)/bin/python -m twine check --strict dist/*
	$(PYTHON) -m venv --clear $(FRESH)
	$(FRESH)/bin/$(PIP) $(CONSTRAINTS) "$$(ls $(CURDIR)/dist/*.whl)[all]"
	cd $(FRESH) && bin/lightning-audit --help > help.txt && bin/python $(CURDIR)/tests/support/installed.py
	cd $(FRESH) && bin/lightning-audit check audit

clean:
	rm -rf $(VENV) demo dist benchmarks/results benchmarks/.environments

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.examples: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[examples]"
	touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) --editable ".[dev]"
	touch $@

$(VENV)/.browser: $(VENV)/.dev
	$(INSTALL) --editable ".[dev,browser]"
	touch $@

$(LOWEST)/.dev: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/$(PIP) --constraint constraints-lowest.txt --editable ".[test]"
	touch $@

$(SITE)/.dev: constraints-site.txt
	$(PYTHON) -m venv --clear $(SITE)
	$(SITE)/bin/$(PIP) --constraint constraints-site.txt zensical mkdocstrings-python latex2mathml ruff
	touch $@

benchmarks/.environments/python-%/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/$(PIP) $(CONSTRAINTS) --editable ".[test]"
	touch $@

benchmarks/.environments/python-%/.without-torch: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(@D)
	grep -Ev "^(torch|opacus|pytorch-lightning|lightning)" constraints.txt > $(@D)/pins.txt
	$(@D)/bin/$(PIP) --no-deps --requirement $(@D)/pins.txt --editable .
	touch $@

$(BUILD)/.tools:
	$(PYTHON) -m venv --clear $(BUILD)
	$(BUILD)/bin/$(PIP) build twine
	touch $@

# MLflow and Weights & Biases, on top of the packages of the environment that PYTHON is of.
$(TRACKERS)/.dev: constraints.txt constraints-trackers.txt
	$(PYTHON) -m venv --clear $(TRACKERS)
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(TRACKERS)/base.pth
	mv $(TRACKERS)/base.pth $(TRACKERS)/lib/python3*/site-packages/
	$(TRACKERS)/bin/$(PIP) --constraint constraints.txt --constraint constraints-trackers.txt mlflow-skinny sqlalchemy alembic wandb
	touch $@

# Ray and Dask, in the same way.
$(CLUSTERS)/.dev: constraints.txt constraints-clusters.txt
	$(PYTHON) -m venv --clear $(CLUSTERS)
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(CLUSTERS)/base.pth
	mv $(CLUSTERS)/base.pth $(CLUSTERS)/lib/python3*/site-packages/
	$(CLUSTERS)/bin/$(PIP) --constraint constraints.txt --constraint constraints-clusters.txt ray distributed
	touch $@

# Flower, in the same way.
$(FLOWER)/.dev: constraints.txt constraints-flower.txt
	$(PYTHON) -m venv --clear $(FLOWER)
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(FLOWER)/base.pth
	mv $(FLOWER)/base.pth $(FLOWER)/lib/python3*/site-packages/
	$(FLOWER)/bin/$(PIP) --constraint constraints-flower.txt flwr
	touch $@

# Hugging Face's transformers with accelerate and peft, in the same way.
$(TRANSFORMERS)/.dev: constraints.txt constraints-transformers.txt
	$(PYTHON) -m venv --clear $(TRANSFORMERS)
	$(PYTHON) -c "import sysconfig; print(sysconfig.get_path('purelib'))" > $(TRANSFORMERS)/base.pth
	mv $(TRANSFORMERS)/base.pth $(TRANSFORMERS)/lib/python3*/site-packages/
	$(TRANSFORMERS)/bin/$(PIP) --constraint constraints.txt --constraint constraints-transformers.txt transformers accelerate peft
	touch $@
