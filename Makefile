# `make run` and `make test` set themselves up; the rest is for people who change kbroker.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# PySpark has its own environment. It is half a gigabyte: CI always installs it, other users on request.
SPARK_VENV := .venv-spark
# So has quixstreams, which needs other versions of what the tests use.
STREAMS_VENV := .venv-streams
# So have programs of other people, whose tests run on the pytest plug-in.
FOREIGN_VENV := .venv-foreign
SPARK := $(filter 1 true yes,$(CI) $(KBROKER_SPARK))
ARGS ?=
export ARGS
# The stamp of the compiled modules, if they are compiled in this checkout, and the sources of these modules.
COMPILED := build/compiled.stamp
HOT := $(shell sed -n 's/^    "\(\(kbroker\|wire\)\/.*\.py\)",$$/\1/p' pyproject.toml)
# CI tests a compiled copy of the checkout as well, with little optimization, which saves minutes of the compiler's CPU time.
COMPILED_COPY := build/checkout

.PHONY: run test test-spark test-foreign fuzz audit advisories compiled compiled-copy pure check format docs bench soak lock release clean

run: $(VENV)/run.stamp $(wildcard $(COMPILED))
	exec $(BIN)/kbroker serve $(ARGS)

# tests/ runs in six processes and compat/cluster in two, because one process uses at most one core: each of
# these parts, and one for the rest.
PARTS_OF_TESTS := tests/testing+tests/image tests/cli+tests/sim tests/broker+tests/quorum+tests/storage tests/handlers+tests/spark+tests/web tests/tiered+tests/wire
HALF_OF_CLUSTER := $(foreach name,storm tier_storm replication coordinators unclean_elections slow_links secured,compat/cluster/test_$(name).py)
# What CI repeats with compiled modules: the tests of packages that are compiled for the most part, those of the broker's
# process, and elsewhere each file that imports a compiled module.
COMPILED_PACKAGES := tests/replication tests/runtime tests/server tests/storage tests/wire
COMPILED_PROCESSES := $(foreach name,compiled node recovery_processes cleaning_process copy_process tiered_node,tests/test_$(name).py)
space := $(subst ,, )
IMPORTS_OF_COMPILED := from ($(subst $(space),|,$(subst /,.,$(HOT:.py=)))) import
TESTS_OF_COMPILED = $(sort $(COMPILED_PACKAGES) $(COMPILED_PROCESSES) $(wildcard tests/handlers/test_*fetch*.py tests/handlers/test_*produce*.py) \
	$(shell grep -lE '$(IMPORTS_OF_COMPILED)' tests/broker/test_*.py tests/handlers/test_*.py tests/metadata/test_*.py tests/spark/test_*.py tests/tiered/test_*.py))
SEPARATE_SUITES := compat/spark compat/tiered compat/cluster compat/kafka_tools compat/streams compat/image compat/oracle
# What runs in the compiled copy instead of the checkout, if CI has one: real clients on a broker that is loaded and killed.
CLIENTS := compat/clients compat/torture $(wildcard compat/test_main_job*.py)
OTHERS := compat $(SEPARATE_SUITES:%=--ignore %) $(if $(CI),$(CLIENTS:%=--ignore %))

# A suite on the compiled copy first makes it if it is missing, or waits until .ci/run has made it.
IN_COPY := flock build/copy.lock make $(COMPILED_COPY)/$(COMPILED) && cd $(COMPILED_COPY)

# Three suites at a time, the longest first. Tests with real clients mostly wait for their tools; the others keep one core
# busy.
test: $(VENV)/dev.stamp $(wildcard $(COMPILED)) $(if $(CI),$(VENV)/fuzz.stamp) $(if $(SPARK),$(SPARK_VENV)/spark.stamp) $(if $(CI),$(STREAMS_VENV)/streams.stamp)
	mkdir -p build
	$(BIN)/python .ci/side-by-side \
		'eval "$(BIN)/python -m pytest compat/cluster $(HALF_OF_CLUSTER:%=--ignore %) $$ARGS"' \
		$(if $(CI),'$(IN_COPY) && eval "KBROKER_LONG=0 $(BIN)/python -m pytest $(TESTS_OF_COMPILED) $(CLIENTS) $$ARGS"') \
		'eval "$(BIN)/python -m pytest $(HALF_OF_CLUSTER) $$ARGS"' \
		$(if $(SPARK),'eval "$(SPARK_VENV)/bin/python -m pytest compat/spark $$ARGS"') \
		'eval "$(BIN)/python -m pytest $(OTHERS) $$ARGS"' \
		'eval "$(BIN)/python -m pytest tests $(patsubst %,--ignore %,$(subst +,$(space),$(PARTS_OF_TESTS))) $$ARGS"' \
		$(foreach part,$(PARTS_OF_TESTS),'eval "$(BIN)/python -m pytest $(subst +,$(space),$(part)) $$ARGS"') \
		'eval "$(BIN)/python -m pytest compat/kafka_tools $$ARGS"' \
		$(if $(CI),'$(IN_COPY) && $(BIN)/python -m kbroker.testing.simulate --seeds 0..20 --small') \
		'eval "$(BIN)/python -m pytest compat/image $$ARGS"' \
		'eval "$(BIN)/python -m pytest compat/tiered $$ARGS"' \
		'eval "$(BIN)/python -m pytest compat/oracle $$ARGS"' \
		'eval "$(BIN)/python -m pytest compat/streams $$ARGS"' \
		$(if $(CI),'$(BIN)/python -m tests.fuzz --jobs 1')
	@$(if $(SPARK),,echo 'compat/spark was skipped: set KBROKER_SPARK=1 to fetch PySpark (half a gigabyte) and run it, or use `make test-spark`')

test-spark: $(SPARK_VENV)/spark.stamp
	eval "$(SPARK_VENV)/bin/python -m pytest compat/spark $$ARGS"

# The tests of other people's programs, on a broker of the pytest plug-in or on KBROKER_BOOTSTRAP_SERVERS.
test-foreign: $(FOREIGN_VENV)/foreign.stamp
	$(FOREIGN_VENV)/bin/python -m compat.foreign $(ARGS)

# Coverage-guided fuzzing: ARGS="requests --runs 100000"; see tests/fuzz.
fuzz: $(VENV)/fuzz.stamp
	$(BIN)/python -m tests.fuzz $(ARGS)

# Look up the locked versions in the database of published vulnerabilities, or in its snapshot: ARGS=--strict before a release.
audit: $(VENV)/dev.stamp
	$(BIN)/python .ci/audit $(ARGS)

# Make the snapshot anew, from that database or ARGS="--from DIRECTORY", a checkout of the Python Packaging Advisory Database.
advisories: $(VENV)/dev.stamp
	$(BIN)/python .ci/audit --refresh $(ARGS)

# Compile the hot modules in this checkout; `make run` and `make test` keep them up to date. `make pure` removes them.
compiled: $(COMPILED)

$(COMPILED): $(VENV)/dev.stamp pyproject.toml requirements/hatch_build.py $(HOT)
	$(BIN)/python requirements/hatch_build.py
	mkdir -p $(@D)
	touch $@

pure:
	find kbroker wire -name '*.so' -delete
	rm -f kbroker__mypyc*.so $(COMPILED)

# The copy that CI tests, with an environment of its own; `make test` makes it in CI if it is missing.
$(COMPILED_COPY)/$(COMPILED):
	$(MAKE) compiled-copy

compiled-copy:
	rm -rf $(COMPILED_COPY)
	mkdir -p $(COMPILED_COPY)
	git ls-files -z | xargs -0 cp --parents -t $(COMPILED_COPY)
	KBROKER_OPTIMIZATION=1 $(MAKE) -C $(COMPILED_COPY) compiled

# The style gates: lint, formatting, strict types, import layers. The lint includes ruff's S rules, which are those of bandit.
check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy docker/kafka_tools requirements/*_page.py
	$(BIN)/lint-imports

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/dev.stamp
	$(BIN)/python -m requirements.settings_page > docs/configuration.md
	$(BIN)/python -m requirements.apis_page > docs/apis.md
	$(BIN)/python -m requirements.metrics_page > docs/metrics.md
	$(BIN)/python -m requirements.man_page > docs/kbroker.1

bench: $(VENV)/dev.stamp
	$(BIN)/python -m compat.bench $(ARGS)

# The long runs, with fuzzing, for an hour or ARGS="--minutes 10": every crash point of many workloads, kill -9 under load many times.
# ARGS="--attack --minutes 10" attacks brokers with requests instead, and checks waiting times and memory.
soak: $(VENV)/dev.stamp $(VENV)/fuzz.stamp $(SPARK_VENV)/spark.stamp
	$(BIN)/python -m compat.torture.soak $(ARGS)

lock:
	./requirements/update.sh

# make release VERSION=1.2.3: version, notes, source and wheels in dist/, all checked; it uploads nothing. See docs/releases.md.
release:
	$(PYTHON) .ci/release $(or $(VERSION),$(error set VERSION, as in: make release VERSION=1.2.3))

clean:
	rm -rf $(VENV) $(SPARK_VENV) $(STREAMS_VENV) $(FOREIGN_VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Install the locked requirements by hash, then the checkout itself without build isolation. The files with which Spark
# finds data sources are copied into the environment.
LOOKUP := $(wildcard kbroker/spark/lookup/*.py)

$(VENV)/run.stamp: requirements/run.txt pyproject.toml $(LOOKUP)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q kbroker wire  # so that the first start is as fast as later ones
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/run.stamp
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	touch $@

$(VENV)/fuzz.stamp: requirements/fuzz.txt $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/fuzz.txt
	touch $@

$(SPARK_VENV)/spark.stamp: requirements/spark.txt pyproject.toml $(LOOKUP)
	$(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_VENV)/bin/python -m pip install --quiet --require-hashes -r requirements/spark.txt
	$(SPARK_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

$(STREAMS_VENV)/streams.stamp: requirements/streams.txt
	$(PYTHON) -m venv $(STREAMS_VENV)
	$(STREAMS_VENV)/bin/python -m pip install --quiet --require-hashes -r requirements/streams.txt
	touch $@

$(FOREIGN_VENV)/foreign.stamp: requirements/foreign.txt pyproject.toml
	$(PYTHON) -m venv $(FOREIGN_VENV)
	$(FOREIGN_VENV)/bin/python -m pip install --quiet --require-hashes -r requirements/foreign.txt
	$(FOREIGN_VENV)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@
