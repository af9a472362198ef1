# Every target sets up what it needs in .venv and leaves the rest of the machine alone.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install browser demo test lint types docs clean FORCE

# A Python is good enough when it is 3.11 or newer and can make virtual environments.
GOOD_PYTHON := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell unset PYTHONPATH PYTHONHOME; for python in python3 python3.13 python3.12 python3.11; do \
	if $$python -c '$(GOOD_PYTHON)' >/dev/null 2>&1; then echo $$python; break; fi; done)

VENV := .venv
RUN := $(VENV)/bin/python
PIP := $(RUN) -m pip
READY := $(VENV)/.installed
DOCS_READY := $(VENV)/.installed-docs

# Tests run side by side: one a core, at most four.
JOBS ?= $(shell cores=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1); [ "$$cores" -gt 4 ] && cores=4; echo $$cores)

# Settings of the user's own that would change what is imported or where pip installs.
unexport PYTHONPATH PYTHONHOME PIP_TARGET PIP_PREFIX PIP_ROOT
export PIP_USER := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed 's/:.*## /|/' | \
		while IFS='|' read -r target text; do printf '  make %-7s %s\n' "$$target" "$$text"; done

install: $(READY) ## set up .venv with the library, the command and the test tools

demo: $(READY) ## compare six methods on handwritten digits; ends with the path of the report
	$(VENV)/bin/isingformer study quick --out studies/demo

browser: ## install Debian's chromium, which the tests of web pages drive; without it they skip
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		{ apt-get install -y -qq chromium >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; }; } || \
		echo "no chromium here and no way to install it: the tests of web pages will skip"

test: lint types ## lint, types and the test suite
	$(RUN) -m pytest -n $(JOBS) --dist worksteal

lint: $(READY) ## ruff: rules and formatting
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check

types: $(READY) ## mypy
	$(RUN) -m mypy

docs: $(DOCS_READY) ## build the documentation into site/
	$(RUN) -m mkdocs build --strict

clean: ## remove .venv, caches and everything built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(RUN):
	@'$(PYTHON)' -c '$(GOOD_PYTHON)' >/dev/null 2>&1 || { echo "isingformer needs Python 3.11 or newer with its venv module, got '$(PYTHON)': install one, or name it with make PYTHON=..." >&2; exit 1; }
	'$(PYTHON)' -m venv --clear $(VENV)

# The stamp holds the folder it was made for: a checkout that was moved or copied installs itself again.
# torch comes first and pinned: an open range may bring several gigabytes of a build that is not wanted.
$(READY): pyproject.toml constraints.txt $(if $(filter-out $(CURDIR),$(shell cat $(READY) 2>/dev/null)),FORCE) | $(RUN)
	@rm -f $@
	@$(PIP) --version >/dev/null 2>&1 || $(RUN) -m ensurepip
	$(PIP) install --quiet "$$(grep '^torch==' constraints.txt)"
	$(PIP) install --quiet -c constraints.txt -e '.[dev]'
	@pwd -P > $@

$(DOCS_READY): $(READY)
	@rm -f $@
	$(PIP) install --quiet -c constraints.txt -e '.[docs]'
	@touch $@
