# make quickstart | test | lint | difftest | bench     (PYTHON=python3.12 picks another interpreter)
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --quiet --disable-pip-version-check
SEED ?= 0
WORKDIR ?= runs/quickstart

.PHONY: quickstart test lint format difftest clean

quickstart: $(VENV)/.installed
	$(PY) -m gigpo_jax.main --config=configs/quickstart.py --workdir=$(WORKDIR)

test: $(VENV)/.installed-dev
	$(PY) -m pytest -n 2 --dist loadfile

lint: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

difftest: $(VENV)/.installed-dev
	$(PY) -m pytest -m long -n 2 tests/env_bridge/alfworld --seed=$(SEED)

# The alfworld package is installed without what only its own engine needs: the games are made from its floor plans.
$(VENV)/.installed: requirements.txt setup.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gigpo_jax needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, once)"
	$(PIP) -r requirements.txt
	$(PIP) --no-deps alfworld==0.4.2
	$(PIP) --no-deps -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	$(PIP) -r requirements-dev.txt
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
