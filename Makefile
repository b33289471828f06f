# Everything here works on a fresh Debian with python3 and make: what is missing gets installed
# by packaging/setup.sh, or the exact command is printed.

PYTHON ?= python3
BIN := .venv/bin
export PYTHON

.PHONY: help run test test-gpu demo bench lint format check clean setup setup-test

help: ## Show this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup:
	@packaging/setup.sh run

setup-test:
	@packaging/setup.sh test

run: setup ## Start the daemon and watch every Python process on this machine
	@$(BIN)/watchdog start
	@$(BIN)/watchdog status --watch

demo: setup-test ## A real training runs out of memory and nothing is lost (under two minutes)
	@$(BIN)/watchdog demo

test: setup-test ## Run all tests
	@$(BIN)/python -m pytest $(TESTS)

test-gpu: setup-test ## Tests on a real NVIDIA card, with a real PyTorch training; skipped without
	@$(BIN)/python -m pytest -m gpu -rs -s

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
	@$(BIN)/python bench/rescue.py
	@$(BIN)/python bench/gpu.py

clean: ## Remove what was built
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
