# Needs only Python (3.11 to 3.13) and make. Each target creates .venv and installs what it
# uses; stamp files in .venv remember which extras are in, and a newer pyproject.toml
# installs them again.

VENV ?= .venv
# Interpreters that create the environments; chosen automatically where empty.
PYTHON ?=
PYTHON_OLDEST ?=
PYTHON_NEWEST ?=
# Upper limit of test processes. Each one holds JAX and TensorFlow, about 2 GB.
JOBS ?= 4
PYTEST_ARGS ?=

BIN := $(VENV)/bin
RUN_ENV := JAX_PLATFORMS=cpu TF_CPP_MIN_LOG_LEVEL=3
PYTEST := $(RUN_ENV) $(BIN)/python -m pytest -n auto --maxprocesses=$(JOBS) --dist=worksteal

# Extras of each stamp.
extras-demo := tensorflow
extras-test := tensorflow,test
extras-lean := test
extras-test-all := tensorflow,test,lint,models
extras-lint := tensorflow,test,lint
extras-docs := docs

# An environment is made by the interpreter that the variable named by CHOICE gives, or else by
# one of MINORS; PINS is added to what is installed.
CHOICE := PYTHON
MINORS := 3.13 3.12 3.11
PINS :=

# The ends of the supported range: the oldest JAX on the oldest Python, the newest on a newer one.
in-oldest := VENV=.venv-oldest CHOICE=PYTHON_OLDEST MINORS=3.11 PINS='jax==0.10.2 jaxlib==0.10.2'
in-newest := VENV=.venv-newest CHOICE=PYTHON_NEWEST MINORS='3.12 3.13' PINS='--upgrade jax jaxlib'

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo quick test test-lean lean test-all test-matrix test-oldest test-newest python-oldest python-newest
.PHONY: lint format pages docs docs-serve bench fingerprints fingerprints-here clean

help:
	@echo "make demo         a JAX model to a SavedModel and back, with every derivative checked"
	@echo "make quick        the tests nearest to what you changed, in under a minute"
	@echo "make test         the tests, without the slow ones"
	@echo "make test-lean    the part of them that runs without TensorFlow, which \`make test\` runs too"
	@echo "make test-all     all tests, with the libraries of models that some of them need"
	@echo "make test-oldest  the tests on Python 3.11 with the oldest JAX supported"
	@echo "make test-newest  the tests on a newer Python with the newest JAX"
	@echo "make test-matrix  both of these"
	@echo "make lint         ruff and pyright"
	@echo "make format       apply ruff's formatting and safe fixes"
	@echo "make docs         the documentation, into site/"
	@echo "make pages        the pages of it that scripts write"
	@echo "make bench        the measurements in benchmarks/"
	@echo "make fingerprints the fingerprints of library functions, for the oldest and the newest JAX"
	@echo "make clean        remove everything the other targets made"

# A name on the path need not be an interpreter that runs (pyenv leaves shims behind for
# versions that are not active, and uv gives up at those), so each candidate is run. The newest
# TensorFlow supported has wheels up to Python 3.13. ensurepip is absent on Debian without
# python3-venv.
$(VENV)/.created:
	@runs() { "$$1" -c 'import sys, ensurepip, venv; sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1:])' \
	    $(MINORS) >/dev/null 2>&1; }; \
	find_python() { \
	  for candidate in $(or $($(CHOICE)),python3 $(MINORS:%=python%)); do \
	    if runs "$$candidate"; then echo "$$candidate"; return; fi; \
	  done; \
	  if [ -n "$($(CHOICE))" ]; then return; fi; \
	  for minor in $(MINORS); do \
	    for candidate in "$$(uv python find --system "$$minor" 2>/dev/null)" \
	        "$$(pyenv prefix "$$minor" 2>/dev/null)/bin/python"; do \
	      if runs "$$candidate"; then echo "$$candidate"; return; fi; \
	    done; \
	  done; \
	}; \
	chosen=$$(find_python); \
	if [ -z "$$chosen" ]; then \
	  echo "Found no Python ($(MINORS)) with the venv module: neither on the path nor through uv or pyenv." >&2; \
	  echo "Install one, or name it: make $(CHOICE)=/path/to/python" >&2; \
	  exit 1; \
	fi; \
	echo "Creating $(VENV) with $$chosen"; \
	"$$chosen" -m venv --clear $(VENV) && touch $@

# uv is used where it runs, since it is faster; pip otherwise, or where uv cannot reach an
# index that only pip is configured for.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@set -e; what='.[$(extras-$*)]'; echo "Installing $$what $(PINS)"; \
	if uv --version >/dev/null 2>&1 && uv pip install --quiet --python $(BIN)/python -e "$$what" $(PINS); then :; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check -e "$$what" $(PINS); fi; \
	touch $@

demo: $(VENV)/.installed-demo
	$(RUN_ENV) $(BIN)/python examples/demo.py

# The tests of what differs from main, the nearest first, for as long as the budget lasts.
quick: $(VENV)/.installed-test
	$(RUN_ENV) $(BIN)/python -m pytest -q -m "not slow or nearest" --budget=40 $(PYTEST_ARGS) $$($(BIN)/python -m tests.changed)

test: $(VENV)/.installed-test
	@$(BIN)/python -c 'import sys, jax; print("Python", sys.version.split()[0], "jax", jax.__version__)'
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)
	$(if $(PYTEST_ARGS)$(filter-out .venv,$(VENV)),,@$(MAKE) --no-print-directory test-lean)

# What has to work where TensorFlow is not installed, in an environment of its own.
LEAN := tests/frontends/test_legacy_jax2tf.py tests/frontends/test_open_sizes.py \
	tests/emission/test_saving.py tests/modules tests/test_errors.py tests/test_child.py

test-lean:
	@$(MAKE) --no-print-directory VENV=.venv-lean lean

lean: $(VENV)/.installed-lean
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("tensorflow") and "TensorFlow is installed")'
	$(PYTEST) -m "not slow" $(LEAN)

# Slow cases are drawn: PYTEST_ARGS=--draw-seed=1 draws others, --every-case runs all. LLVM
# optimizes, which tests/conftest.py leaves out otherwise.
test-all: $(VENV)/.installed-test-all
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 $(PYTEST) $(PYTEST_ARGS)

# Finds or makes the environment of one end, and says so where there is no interpreter for it.
python-oldest python-newest: python-%:
	@$(MAKE) --silent $(in-$*) .venv-$*/.created

# What is newest changes, so it is installed again each time.
test-oldest test-newest: test-%: python-%
	@rm -f .venv-$*/.installed-test
	@$(MAKE) --no-print-directory $(in-$*) test

# What the package ships: fingerprints of JAX's functions, for both ends of the range.
fingerprints: python-oldest python-newest
	@$(MAKE) --no-print-directory $(in-oldest) fingerprints-here
	@$(MAKE) --no-print-directory $(in-newest) fingerprints-here

fingerprints-here: $(VENV)/.installed-test
	$(RUN_ENV) $(BIN)/python benchmarks/fingerprints.py

# Both interpreters are looked for before the first test.
test-matrix: python-oldest python-newest test-oldest test-newest

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Pages that are made by running models; tests compare them with what they are made from.
pages: $(VENV)/.installed-test
	$(RUN_ENV) $(BIN)/python -m tools.measurements
	$(RUN_ENV) $(BIN)/python -m tools.gallery
	$(RUN_ENV) $(BIN)/python -m tools.tutorial

docs: pages $(VENV)/.installed-docs
	$(BIN)/mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	$(BIN)/mkdocs serve

bench: $(VENV)/.installed-test
	@set -e; for script in $(filter-out benchmarks/protos.py benchmarks/fingerprints.py benchmarks/optimize.py,$(wildcard benchmarks/[!_]*.py)); do echo "== $$script"; $(RUN_ENV) $(BIN)/python "$$script"; done

clean:
	rm -rf $(VENV) .venv-lean .venv-oldest .venv-newest site build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
