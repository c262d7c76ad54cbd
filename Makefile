# The project's tasks. Each needs only GNU or BSD make and Python 3.11: the environment is created on demand in .venv,
# from the versions pinned in constraints.txt. `make demo ARGS="--help"` passes arguments on.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
ARGS ?=
# Those that try for as long as they are asked to.
LONG := $(BIN)/python -m pytest --timeout 0

.PHONY: test test-slow check docs docs-serve pictures differential power crash linear safety storm proof fuzz demo bench bench-growth bench-spark packages declarative soak java clean lock

# Three processes, because most tests wait for a disk, a server or another process. Each starts with its share of the
# tests and takes over tests from the others. They and the programs that they start import the same modules, which are
# compiled once, even in a container whose environment forbids it.
test: $(VENV)/.dev java
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal -m "not slow" --hypothesis-profile quick $(ARGS)

# The rest: long runs of Spark, three servers, killed processes, and more programs of each model; then six minutes of a proof,
# which plays storms, cancellations, full disks, simulations, histories and programs beside nats-server, too.
test-slow: $(VENV)/.dev java
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist worksteal -m "slow or at_length" --hypothesis-profile same \
		--deselect tests/storm/test_storm.py --deselect tests/storm/test_cancellation.py \
		--deselect tests/storm/test_full_disks.py --deselect tests/differential/test_differential.py $(ARGS) \
		|| [ $$? -eq 5 ]  # A second try, if only the proof has failed: there are no tests to run again.
	rm -f build/proof.json
	$(BIN)/python -m tests.proof --hours 0.1 --record build/proof.json

# Thousands of random programs on the engine and on nats-server; ARGS="--hypothesis-seed=N" repeats those of a seed.
differential: $(VENV)/.dev
	$(LONG) tests/differential -s --hypothesis-profile differential $(ARGS)

# A thousand power losses in the middle of random programs; ARGS="--power-seed N" runs those of another seed.
power: $(VENV)/.dev
	$(LONG) tests/crash/test_power.py --images 1000 $(ARGS)

# Two hundred kills of processes that forward messages, of workers of durable functions, and of Spark's drivers and executors; attempts of tasks run side by
# side, and the network is cut and restored; a server at work is killed 200 times and stopped 100 times, a leaf node and its hub are killed, and the wire is
# cut, 300 times, and so often their clocks are stepped. ARGS="--kills N" and "--restarts N" change the numbers.
crash: $(VENV)/.dev java
	$(LONG) tests/crash/test_sourcing.py tests/crash/test_feeding.py tests/sourcing/test_network.py tests/queue/run/test_durable_kills.py \
		tests/spark/pipelines/test_lake_archive_crash.py tests/spark/pipelines/test_stream_replay_crash.py tests/spark/hosts tests/crash/served \
		--kills 200 --restarts 300 $(ARGS)

# A thousand simulated elections and locks, a hundred exclusive queues, and fifty runs of real processes that are stopped
# and killed, on both backends.
safety: $(VENV)/.dev
	$(LONG) tests/locks tests/queue/keys --simulated 1000 --stopped 50 $(ARGS)

# Five hundred histories of clients that share a bucket, on a file and on nats-server: is each linearizable?
linear: $(VENV)/.dev
	$(LONG) tests/linear -s --histories 500 $(ARGS)

# For ten minutes, processes are killed and stopped while their stores, old ones too, are purged, backed up and given new
# keys, and the clock jumps; operations of every kind are cancelled, and disks become full. ARGS="--storm-seed N" runs others.
storm: $(VENV)/.dev
	$(LONG) tests/storm -s --troubles 900 --cancelled 30000 --fillings 400 $(ARGS)

# All of these in short rounds, side by side, for hours: make proof HOURS=8; HOURS=0.5 is a full proof on two cores. Its
# record is benchmarks/results/proof.json, and goes on where it was interrupted; .venv/bin/python -m tests.proof KIND:NUMBER
# plays a round again, and make proof ARGS=--mutants plays rounds on code with planted faults.
HOURS ?= 8
proof: $(VENV)/.dev
	$(BIN)/python -m tests.proof --hours $(HOURS) $(ARGS)

# Ten million odd inputs (commands, frames, requests, headers, archives, JWTs, configurations, what hubs send) on `pelton serve` and on
# nats-server: make fuzz N=100000 SEED=7. What is found is named, and played again by .venv/bin/python -m tests.fuzz KIND:NUMBER.
N ?= 10000000
SEED ?= 1
fuzz: $(VENV)/.dev
	$(BIN)/python -m tests.fuzz -n $(N) --seed $(SEED) $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The documentation site, in build/site: a broken link or an unknown name is an error.
docs: $(VENV)/.dev
	$(BIN)/python -m tools.site

docs-serve: $(VENV)/.dev
	$(BIN)/python -m tools.site --serve $(ARGS)

# The pictures of the dashboard in its guide, with Chromium: make pictures ARGS="/tmp/elsewhere"
pictures: $(VENV)/.dev
	$(BIN)/python -m tools.pictures $(ARGS)

demo: $(VENV)/.dev java
	$(BIN)/python -m examples.flights $(ARGS)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(ARGS)

# What each verb costs as a store grows: some minutes; with ARGS=--full, which writes benchmarks/results/growth.md, an hour.
bench-growth: $(VENV)/.dev
	$(BIN)/python -m benchmarks.growth $(ARGS)

# Spark's reads and writes, compared with Parquet and with simpler sources and sinks: make bench-spark ARGS="--rows 200000"
bench-spark: $(VENV)/.dev java
	$(BIN)/python -m benchmarks.spark $(ARGS)

# Build sdist and wheel into dist/, and try the wheel in a clean environment of each Python on the path, from 3.11 on.
packages: $(VENV)/.dev
	$(BIN)/python -m tools.packages $(ARGS)

# The example of Spark Declarative Pipelines, twice in a row, and all tests of Spark Connect: two minutes if idle.
declarative: $(VENV)/.dev java
	$(BIN)/python -m pytest tests/examples/test_spark_pipeline.py tests/spark/test_connect.py --declarative --connect $(ARGS)

# Optional arguments are the minutes (10) and the seed: make soak ARGS="60 7"
soak: $(VENV)/.dev
	$(BIN)/python -m tests.soak $(ARGS)

# Java for Spark: find it, install it if possible, or say how.
java:
	@sh tools/java.sh

# The stamps record which extras are in the environment; they are outdated when a dependency changes.
$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(INSTALL) -e '.[dev,bench]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# Pin the newest versions that pyproject.toml allows, resolved in a separate environment.
lock:
	rm -rf build/lock
	$(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet --disable-pip-version-check '.[dev,bench]'
	build/lock/bin/python -m pip freeze --exclude pelton > build/lock/constraints.txt
	mv build/lock/constraints.txt constraints.txt
	rm -rf build/lock

clean:
	rm -rf $(VENV) build dist demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
