# Everything here works on a fresh Debian with python3 and make: what is missing gets installed
# by packaging/setup.sh, or the exact command is printed.

PYTHON ?= python3
BIN := .venv/bin
export PYTHON
# Every process uses, and writes, bytecode: importing TensorFlow takes 3.4 s then instead of 8.5 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test test-fast test-nightly record-decisions test-gpu test-vm demo bench soak lint format check fuzz crash audit labextension clean setup setup-test setup-vm

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup:
	@packaging/setup.sh run

setup-test:
	@packaging/setup.sh test

setup-vm:
	@packaging/setup.sh vm

run: setup ## Start the daemon and watch every Python process on this machine
	@$(BIN)/watchdog start
	@$(BIN)/watchdog status --watch

demo: setup-test ## A real training runs out of memory and nothing is lost (about two minutes)
	@$(BIN)/watchdog demo

# Three workers in process namespaces of their own, as tests wait half of the time; one outside
# of them for the tests that need real PIDs. A failed test fails the run; that it is repeated
# afterwards is for information only.
WORKERS := --dist loadfile --tx popen --tx '3*popen//python=packaging/apart.sh $(BIN)/python' --durations=15 --repeat-failures
FAST := not process and not training and not slow and not vm and not gpu
DAILY := not slow and not vm and not gpu

test: setup-test ## Run the tests of every day (TESTS="words for pytest" runs those alone)
ifdef TESTS
	@$(BIN)/python -m pytest $(TESTS)
else
	@$(BIN)/python -m pytest -m '$(DAILY)' $(WORKERS)
endif

test-fast: setup-test ## The tests that start no process (about two minutes)
	@$(BIN)/python -m pytest -m '$(FAST)' $(WORKERS)

test-nightly: setup-test ## All tests, the slow ones too, each training in a fresh process
	@$(BIN)/python -m pytest -m 'not vm and not gpu' --fresh $(WORKERS)

record-decisions: setup-test ## Record the decisions of tests/core anew, after a change that is meant
	@rm -f tests/core/decisions/*.jsonl
	@$(BIN)/python -m pytest tests/core -q --record-decisions -n 4 --dist loadfile

test-gpu: setup-test ## Tests on a real NVIDIA card, with a real PyTorch training; skipped without
	@$(BIN)/python -m pytest -m gpu -rs -s

test-vm: setup-vm ## Tests in an emulated machine with systemd and cgroup v2 (minutes; see tests/vm/README.md)
	@$(BIN)/python tests/vm/machine.py test $(TESTS)

lint: setup-test ## Format check, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: setup-test ## Format the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

check: lint test ## What CI runs

bench: setup-test ## Measure: cost of the daemon, of the agent, of a save, and the rescue table
	@$(BIN)/python bench/cost.py
	@$(BIN)/python bench/agent.py
	@$(BIN)/python bench/save.py
	@$(BIN)/python bench/rescue.py --runs 1 --rows 5,100,jump-step,jump-data
	@$(BIN)/python bench/thrash.py
	@$(BIN)/python bench/gpu.py

soak: setup-test ## An hour of churn around a real daemon: nothing may grow (ARGS="--minutes 10")
	@$(BIN)/python bench/soak.py $(ARGS)

fuzz: setup-test ## Fuzz every reader of what others wrote; findings are kept (ARGS="--seconds 600")
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

crash: setup-test ## Cut every writer short at each of its writes: killed, without power, disk refusing
	@$(BIN)/python bench/crash_cuts.py $(ARGS)

labextension: setup-test ## Build what JupyterLab shows, with npm (needs the network)
	@command -v npm >/dev/null || { echo "npm is missing. Run: sudo apt-get install nodejs npm"; exit 1; }
	@rm -rf build/jupyterlab && mkdir -p build && cp -r packaging/jupyterlab build/
	@cd build/jupyterlab && rm -rf labextension && npm ci --ignore-scripts --no-audit --no-fund
	@cd build/jupyterlab && PATH="$(CURDIR)/$(BIN):$$PATH" npm run build
	@rm -rf packaging/jupyterlab/labextension && cp -r build/jupyterlab/labextension packaging/jupyterlab/

audit: ## Known vulnerabilities of what development pins (needs the network)
	@packaging/audit.sh

clean: ## Remove what was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
