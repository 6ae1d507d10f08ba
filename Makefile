# `make train` and `make test`, each complete on a fresh machine that has Python >= 3.11.
#
#   make PYTHON=/path/to/python3.12 train    with that interpreter
#   make VENV=/tmp/env test                  with the virtual environment there
#   make test PYTEST_ARGS="-m slow"          pytest with these arguments instead
#   make test JOBS=1                         one test at a time (otherwise a process a core, at most 8)

VENV ?= .venv
PYTEST_ARGS ?=
JOBS ?= logical
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	if $$python -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$python; break; fi; done)
INSTALLED := $(VENV)/.flowrl-installed

.PHONY: help train test notebooks install clean

help:
	@echo "make train     train PPO on CartPole-v1 until it is solved"
	@echo "make test      lint, format, types, tests"
	@echo "make notebooks  run the notebooks and write them anew"
	@echo "make install   only make $(VENV)"
	@echo "make clean     remove $(VENV) and what the tools keep"

train: $(INSTALLED)
	$(VENV)/bin/flowrl train ppo --env CartPole-v1 --stop-return 475

# A process a core for the tests without Ray; those with it use all cores by themselves, and some measure time, so they
# come after, one at a time. Both parts run, whatever the first gave.
test: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
ifdef PYTEST_ARGS
	$(VENV)/bin/python -m pytest $(PYTEST_ARGS)
else
	status=0; \
	$(VENV)/bin/python -m pytest -m "not slow and not ray" -n $(JOBS) --maxprocesses 8 --dist worksteal || status=$$?; \
	$(VENV)/bin/python -m pytest -m "not slow and ray" || status=$$?; \
	exit $$status
endif

notebooks: $(INSTALLED)
	$(VENV)/bin/python notebooks/render.py

install: $(INSTALLED)

# The stamp is older than the files when either changes, and then pip runs again.
$(INSTALLED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) -c '$(NEW_ENOUGH)' || \
		{ echo "flowrl needs Python >= 3.11; name one with: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV): some minutes, for torch and Ray are large"
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist flowrl.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
