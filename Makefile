# `make` alone shows the targets. Each does all its own set-up, in .venv; a second run finds it done.
#
# Needs Python 3.11 or newer, make and git; no compiler: only wheels are installed, by hash.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PIP_INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check
UV_COMPILE := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --no-header pyproject.toml --extra build
PROTOS := $(wildcard proto/naru/v1/*.proto)
PROTOC := PATH="$(VENV)/bin:$$PATH" $(PY) -m grpc_tools.protoc -I proto

# Arguments for pytest, such as `make test T="tests/gateway -x"`.
T :=
# Arguments for the bench, such as `make bench B="--concurrency 32 --check"`.
B :=

.PHONY: help
help: ## Show the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: run
run: $(VENV)/.demo ## Run registry, gateway and demo tools here; state in .naru/
	@$(PY) -m ops.run

.PHONY: test
# In the order of the folders, so that the slow tests with real processes aren't the last, beside an idle worker.
test: $(VENV)/.dev ## Run every test, two at a time
	@$(PY) -m tests.support.node_setup
	@$(PY) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(T)

.PHONY: check
check: proto-check lint imports types ## Fresh generated code, style, import rules, types

.PHONY: lint
lint: $(VENV)/.dev ## Check style and slips
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check

.PHONY: types
types: $(VENV)/.dev ## Check types
	@$(PY) -m mypy

.PHONY: imports
imports: $(VENV)/.dev ## Check who may import whom
	@$(VENV)/bin/lint-imports

.PHONY: proto
proto: $(VENV)/.dev ## Generate code from proto/
	@$(PROTOC) --python_out=proto --grpc_python_out=proto --mypy_out=quiet:proto --mypy_grpc_out=quiet:proto $(PROTOS)

.PHONY: proto-check
proto-check: $(VENV)/.dev ## Check that the generated code is that of proto/
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && \
	$(PROTOC) --python_out="$$fresh" --grpc_python_out="$$fresh" --mypy_out=quiet:"$$fresh" \
		--mypy_grpc_out=quiet:"$$fresh" $(PROTOS) && \
	diff -r -x '*.proto' -x __init__.py -x wire.py -x __pycache__ "$$fresh/naru/v1" proto/naru/v1 || \
	{ echo "proto-check: the generated code is not fresh: make proto" >&2; exit 1; }

.PHONY: bench
bench: $(VENV)/.dev ## Measure Naru beside a bare floor, and its memory over 50 000 calls (about 3 minutes)
	@$(PY) -m bench --soak $(B)

.PHONY: conformance
conformance: $(VENV)/.dev ## Run the official MCP conformance suite
	@$(PY) -m tests.conformance

.PHONY: up
up: ## Start everything in containers, on 127.0.0.1:8080
	docker compose up --detach --build --wait

.PHONY: down
down: ## Stop the containers
	docker compose down

.PHONY: compose-test
compose-test: $(VENV)/.dev ## Prove the containers, together and split: calls, records, a switch, a crash
	@$(PY) -m tests.compose

.PHONY: lock
lock: $(VENV)/.dev ## Lock the dependencies of pyproject.toml anew
	$(UV_COMPILE) -o requirements.txt
	$(UV_COMPILE) --extra demo -c requirements.txt -o requirements-demo.txt
	$(UV_COMPILE) --extra demo --extra dev -c requirements.txt -o requirements-dev.txt

# The demo's packages are among the developer's: either stamp can be made after the other, in the same .venv.
$(VENV)/.demo: requirements-demo.txt pyproject.toml $(VENV)/.made
	@echo "installing what the demo needs into $(VENV) (once) ..."
	@$(PIP_INSTALL) --require-hashes --only-binary :all: -r requirements-demo.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.txt pyproject.toml $(VENV)/.made
	@echo "installing what development needs into $(VENV) (once) ..."
	@$(PIP_INSTALL) --require-hashes --only-binary :all: -r requirements-dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# The first Python of 3.11 to 3.14, which the dependencies are locked for, or else a newer one; PYTHON=/path/to/python
# names another.
$(VENV)/.made:
	@found=; \
	for last in 14 99; do \
		for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
			test -z "$$found" && "$$python" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, $$last))" \
				2>/dev/null && found=$$python; \
		done; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Naru needs Python 3.11 or newer, and $$(python3 --version 2>&1 || true) is what there is." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2; \
		exit 1; \
	fi; \
	"$$found" -m venv $(VENV) || { \
		echo "$$found cannot make virtual environments: install its venv module (Debian: apt install python3-venv)." >&2; \
		exit 1; \
	}; \
	$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(VENV) is of an older Python: remove it and try again." >&2; exit 1; \
	}; \
	touch $@
