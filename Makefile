# Needs only Python (3.11 to 3.13) and make. Each target creates .venv and installs what it
# uses; stamp files in .venv remember which extras are in, and a newer pyproject.toml
# installs them again.

VENV ?= .venv
# Interpreter that creates the environment; chosen automatically where empty.
PYTHON ?=
# Upper limit of test processes. Each one holds JAX and TensorFlow, about 2 GB.
JOBS ?= 4
PYTEST_ARGS ?=

BIN := $(VENV)/bin
RUN_ENV := JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
PYTEST := $(RUN_ENV) $(BIN)/python -m pytest -n auto --maxprocesses=$(JOBS) --dist=worksteal

# Extras of each stamp.
extras-demo := tensorflow
extras-test := tensorflow,test
extras-test-all := tensorflow,test,lint,models
extras-lint := tensorflow,test,lint
extras-docs := docs

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-matrix lint format docs docs-serve bench clean

help:
	@echo "make demo         a JAX model to a SavedModel and back, with every derivative checked"
	@echo "make test         the tests, without the slow ones"
	@echo "make test-all     all tests, with the libraries of models that some of them need"
	@echo "make test-matrix  the tests on the oldest and the newest JAX (needs uv)"
	@echo "make lint         ruff and pyright"
	@echo "make format       apply ruff's formatting and safe fixes"
	@echo "make docs         the documentation, into site/"
	@echo "make bench        the measurements in benchmarks/"
	@echo "make clean        remove everything the other targets made"

# A name on the path need not be an interpreter that runs (pyenv leaves shims behind for
# versions that are not active), so each candidate is run. The newest TensorFlow supported
# has wheels up to Python 3.13. ensurepip is absent on Debian without python3-venv.
$(VENV)/.created:
	@set -e; chosen=; \
	for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	      >/dev/null 2>&1; then chosen=$$candidate; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	  echo "No Python 3.11 to 3.13 with the venv module found; give one: make PYTHON=/path/to/python3.12" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$chosen"; \
	"$$chosen" -m venv --clear $(VENV); \
	touch $@

# uv is used where it runs, since it is faster; pip otherwise, or where uv cannot reach an
# index that only pip is configured for.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@set -e; what='.[$(extras-$*)]'; echo "Installing $$what"; \
	if uv --version >/dev/null 2>&1 && uv pip install --quiet --python $(BIN)/python -e "$$what"; then :; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check -e "$$what"; fi; \
	touch $@

demo: $(VENV)/.installed-demo
	$(RUN_ENV) $(BIN)/python examples/demo.py

test: $(VENV)/.installed-test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

# JAX's thousands of cases are drawn from: PYTEST_ARGS=--draw-seed=1 draws others, --every-case runs all.
test-all: $(VENV)/.installed-test-all
	$(PYTEST) $(PYTEST_ARGS)

# Both ends of the supported range: the oldest JAX on the oldest Python, the newest on a newer one.
test-matrix:
	@uv --version >/dev/null 2>&1 || { echo "make test-matrix needs uv: https://docs.astral.sh/uv" >&2; exit 1; }
	uv venv --quiet --allow-existing --python 3.11 .venv-oldest
	uv pip install --quiet --python .venv-oldest/bin/python -e '.[tensorflow,test]' jax==0.10.2 jaxlib==0.10.2
	uv venv --quiet --allow-existing --python 3.12 .venv-newest
	uv pip install --quiet --python .venv-newest/bin/python --upgrade -e '.[tensorflow,test]'
	$(MAKE) --no-print-directory test-in BIN=.venv-oldest/bin
	$(MAKE) --no-print-directory test-in BIN=.venv-newest/bin

.PHONY: test-in
test-in:
	$(BIN)/python -c 'import sys, jax; print("Python", sys.version.split()[0], "jax", jax.__version__)'
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	$(BIN)/mkdocs serve

bench: $(VENV)/.installed-test
	@set -e; for script in benchmarks/[!_]*.py; do echo "== $$script"; $(RUN_ENV) $(BIN)/python "$$script"; done

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest site build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
