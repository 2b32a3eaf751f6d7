# make pipeline [RECIPE=tiny] [PORT=4200]   set up if needed, run every stage through Prefect, say where the report is
# make test                                 set up if needed, run the tests
# PIP_ARGS is handed to pip, for instance another package index.

RECIPE ?= tiny
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTS_INSTALLED := $(VENV)/.tests-installed

.PHONY: pipeline test stop mlflow doctor

pipeline: $(INSTALLED)
	@$(BIN)/python -m flows.cli pipeline --recipe $(RECIPE) $(if $(PORT),--port $(PORT))

test: $(TESTS_INSTALLED)
	$(BIN)/python -m pytest $(TESTS)

stop: $(INSTALLED)
	@$(BIN)/python -m flows.cli stop

mlflow: $(INSTALLED)
	@$(BIN)/python -m flows.cli mlflow

doctor: $(INSTALLED)
	@$(BIN)/python -m flows.cli doctor

# The first Python of the right version, or PYTHON=... alone.
CANDIDATES := $(or $(PYTHON),python3.12 python3.11 python3 python)
RIGHT_VERSION := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
NO_PYTHON := error: Python 3.11 or 3.12 is needed and was not found ($(CANDIDATES)): install one or give PYTHON=/its/path

$(INSTALLED): requirements.lock pyproject.toml
	@for name in $(CANDIDATES); do \
	  if $$name -c '$(RIGHT_VERSION)' 2>/dev/null; then found=$$name; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "$(NO_PYTHON)" >&2; exit 1; fi; \
	if ! $(BIN)/python -c '$(RIGHT_VERSION)' 2>/dev/null; then $$found -m venv --clear $(VENV); fi
	@echo "installing requirements.lock into $(VENV) (once; about 2 GB, some minutes)"
	@$(BIN)/python -m pip install --quiet --no-deps $(PIP_ARGS) -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(PIP_ARGS) --editable .
	@touch $@

$(TESTS_INSTALLED): requirements-test.lock $(INSTALLED)
	@$(BIN)/python -m pip install --quiet --no-deps $(PIP_ARGS) -r requirements-test.lock
	@touch $@
