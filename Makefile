# make pipeline [RECIPE=tiny] [PORT=4200]   set up if needed, run every stage through Prefect, say where the report is
# make test                                 set up if needed, run the tests
# make vllm                                 set up vLLM's own environment, .venv-vllm (optional: docs/serving.md)
# make harbor                               set up Harbor's own environment, .venv-harbor (optional; needs Python 3.12)
# PIP_ARGS is handed to pip, for instance another package index.

RECIPE ?= tiny
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTS_INSTALLED := $(VENV)/.tests-installed
TEST_PACKAGES := $(CURDIR)/$(VENV)/test-packages
VLLM_VENV := .venv-vllm
VLLM_INSTALLED := $(VLLM_VENV)/.installed
HARBOR_VENV := .venv-harbor
HARBOR_INSTALLED := $(HARBOR_VENV)/.installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile $(PIP_ARGS)
# pip compiles with one core. A few files are for other versions of Python and do not compile.
COMPILE = $(BIN)/python -m compileall -q -j 0

.PHONY: pipeline test stop mlflow doctor vllm harbor

pipeline: $(INSTALLED)
	@$(BIN)/python -m flows.cli pipeline --recipe '$(RECIPE)' $(if $(PORT),--port $(PORT))

test: $(TESTS_INSTALLED)
	PYTHONPATH=$(TEST_PACKAGES) OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile $(TESTS)

stop: $(INSTALLED)
	@$(BIN)/python -m flows.cli stop

mlflow: $(INSTALLED)
	@$(BIN)/python -m flows.cli mlflow $(if $(PORT),--port $(PORT))

doctor: $(INSTALLED)
	@$(BIN)/python -m flows.cli doctor

vllm: $(VLLM_INSTALLED)
	@echo "vLLM is in $(VLLM_VENV): $(BIN)/python -m model.inference.vllm NAME=FOLDER"

harbor: $(HARBOR_INSTALLED)
	@echo "Harbor is in $(HARBOR_VENV): pytest -m harbor runs tasks with it"

# The first Python of the right version, or PYTHON=... alone.
CANDIDATES := $(or $(PYTHON),python3.12 python3.11 python3 python)
RIGHT_VERSION := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
NO_PYTHON := error: Python 3.11 or 3.12 is needed and was not found ($(CANDIDATES)): install one or give PYTHON=/its/path

NO_VENV := cannot make a virtual environment in $(VENV): install its venv package (Debian, Ubuntu: python3-venv)
NO_INSTALL := error: pip could not install everything (its reason is above): see to the network and the disk, or name \
  another package index with PIP_ARGS, then start again; what is installed stays
NO_TORCH := error: torch is installed and cannot be imported: pip took a build for CUDA without its libraries. Remove \
  $(VENV) and start again with the CPU build: PIP_ARGS="--extra-index-url <PyTorch cpu index>"

# An environment that was left half made has no working pip: it is made anew.
$(INSTALLED): requirements.lock pyproject.toml
	@for name in $(CANDIDATES); do \
	  if $$name -c '$(RIGHT_VERSION)' 2>/dev/null; then found=$$name; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "$(NO_PYTHON)" >&2; exit 1; fi; \
	if ! $(BIN)/python -c '$(RIGHT_VERSION)' 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  $$found -m venv --clear $(VENV) || { echo "error: $$found $(NO_VENV)" >&2; exit 1; }; \
	fi
	@echo "installing requirements.lock into $(VENV) (once; about 2 GB, some minutes)"
	@$(PIP) -r requirements.lock && $(PIP) --no-build-isolation --editable . || { echo '$(NO_INSTALL)' >&2; exit 1; }
	@$(COMPILE) $(VENV)/lib >/dev/null 2>&1 || true
	@$(BIN)/python -c 'import torch' || { echo '$(NO_TORCH)' >&2; exit 1; }
	@touch $@

# Beside the environment: what the tests need would be documents to stage collect, and change what it makes.
$(TESTS_INSTALLED): requirements-test.lock $(INSTALLED)
	@$(PIP) --upgrade --target $(TEST_PACKAGES) -r requirements-test.lock || { echo '$(NO_INSTALL)' >&2; exit 1; }
	@$(COMPILE) $(TEST_PACKAGES) >/dev/null 2>&1 || true
	@touch $@

# Of its own, because its pins exclude Prefect's. No dependencies are resolved: that would bring torchvision and others,
# which do not load beside the CPU build of PyTorch.
$(VLLM_INSTALLED): requirements-vllm.lock | $(INSTALLED)
	@$(BIN)/python -m venv --clear $(VLLM_VENV)
	@echo "installing requirements-vllm.lock into $(VLLM_VENV) (once; about 2.5 GB)"
	@$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) \
	  -r requirements-vllm.lock || { echo '$(NO_INSTALL)' >&2; exit 1; }
	@$(VLLM_VENV)/bin/python -c 'import torch, vllm' || { echo '$(subst $(VENV) ,$(VLLM_VENV) ,$(NO_TORCH))' >&2; exit 1; }
	@touch $@

# Of its own, because it needs Python 3.12: from PATH, or one that pyenv has.
HARBOR_CANDIDATES := $(or $(PYTHON),python3.12 $(wildcard $(HOME)/.pyenv/versions/3.12.*/bin/python) python3)
HARBOR_VERSION := import sys; sys.exit(sys.version_info[:2] != (3, 12))
NO_HARBOR_PYTHON := error: Harbor needs Python 3.12, which was not found ($(HARBOR_CANDIDATES)): install it or give PYTHON=/its/path

$(HARBOR_INSTALLED): requirements-harbor.lock
	@for name in $(HARBOR_CANDIDATES); do \
	  if $$name -c '$(HARBOR_VERSION)' 2>/dev/null; then found=$$name; break; fi; \
	done; \
	if [ -z "$$found" ]; then echo "$(NO_HARBOR_PYTHON)" >&2; exit 1; fi; \
	$$found -m venv --clear $(HARBOR_VENV) || { echo "error: $$found $(subst $(VENV):,$(HARBOR_VENV):,$(NO_VENV))" >&2; exit 1; }
	@echo "installing requirements-harbor.lock into $(HARBOR_VENV) (once; about 0.5 GB)"
	@$(HARBOR_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_ARGS) \
	  -r requirements-harbor.lock || { echo '$(NO_INSTALL)' >&2; exit 1; }
	@$(HARBOR_VENV)/bin/python -c 'import harbor' && touch $@
