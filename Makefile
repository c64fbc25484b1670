# Every command a contributor types. `make setup` is idempotent, so all others start with it.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
NAME ?= startup

.PHONY: help setup demo check test test-fast services-start services-stop bench soak docs lock wheel clean

help: ## Show this list
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/p' Makefile | expand -t 24

setup: ## Create .venv with every extra and tool, from the hashed lock
	@$(PYTHON) scripts/setup_environment.py

demo: setup ## Run dependent pipelines on a small data set, start to finish
	@$(BIN)/python examples/demo/demo.py

check: setup ## Format, lint, types, layers: what a reviewer should not have to say
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/lint_spark_internals.py

test: setup ## Run the whole suite; pytest starts and stops the real services
	@$(BIN)/python scripts/run_tests.py "not soak"

test-fast: setup ## Run everything that needs no service, in under five minutes
	$(BIN)/python -m pytest -m "not soak and not services and not slow"

services-start: setup ## Start the real servers and leave them running
	@$(BIN)/python -m services start

services-stop: ## Stop them
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m services stop; fi

bench: setup ## Run benchmarks/NAME.py, e.g. make bench NAME=startup
	$(BIN)/python benchmarks/$(NAME).py

soak: setup ## Run the long tests
	@$(BIN)/python scripts/run_tests.py soak

docs: setup ## Build the documentation; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lock: setup ## Resolve the dependencies again into requirements.lock
	$(BIN)/uv pip compile packages/*/pyproject.toml --all-extras --universal --python-version 3.10 \
	  --generate-hashes --no-emit-index-url --upgrade --quiet \
	  --custom-compile-command "make lock" --output-file requirements.lock

wheel: setup ## Build wheels and source archives into dist/
	@for package in packages/*/; do $(BIN)/python -m build --no-isolation --outdir dist "$$package"; done

clean: services-stop ## Remove what the other commands created
	rm -rf examples/demo/demo-data .venv .services .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist site
