# sparklog: `make demo` and `make test` set everything up by themselves. Needs Python >= 3.10 and Java >= 17.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
COMPILED := $(VENV)/.compiled
COLLECTED := $(VENV)/.collected

# Spark tests go first, in one process with one session (about 2 GB); the others run what is left. That one waits for
# Spark half of the time: two others keep two cores busy.
TEST_PROCESSES ?= 3
PARALLEL = -n $(TEST_PROCESSES) --dist worksteal
# Seeds that each simulation tries in the slow run; empty: the numbers in tests/support/seeds.py.
SEEDS ?= $(SPARKLOG_SEEDS)
SLOW_REPORT ?= build/slow-report.txt
# What is built from the repository, and how it is installed; the quick tests of these run with `make test`.
PACKAGING = tests/test_wheel.py tests/test_site.py tests/test_notebook.py tests/test_set_up.py \
	tests/test_examples_install.py tests/test_first_ten_minutes.py
# The release of Spark that `make test-spark` tries.
SPARK ?= 4.3
# Beginnings of the names of clients that `make test-clients` runs; empty: all.
CLIENTS ?=
# Of `make bench-peers`. Delta is for Spark 4.2.
ROUNDS ?= 5
RECORDS ?= 2000000
PEERS := .venv-spark-4.2/bin/python

# Modules that `make mutants` changes, by the beginning of their paths, and how often each.
ONLY ?= sparklog/
PER_MODULE ?= 20

# Spark's Python workers are started by the JVM: they must be this environment's, not the first python3 on PATH.
export PYSPARK_PYTHON := $(abspath $(PY))
export PYSPARK_DRIVER_PYTHON := $(abspath $(PY))
# Tests and what they start are compiled once, not at every start: each test process saves ten seconds.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv ready test test-fast test-slow test-packaging test-spark test-oldest test-clients mutants demo notebook docs lint bench bench-peers clean

help:
	@echo "make demo       scan a directory that Kafka wrote, stream it into a topic, tail it (needs nothing but Python and Java)"
	@echo "make test       run the tests; the slowest are listed in build/durations.txt"
	@echo "make test-fast  run those without Spark, without Kafka's programs and without sweeps"
	@echo "make test-slow  run the long sweeps and report what ran (SEEDS=1000: so many seeds of each simulation)"
	@echo "make test-packaging  run the slow tests of the wheel, the site, the notebook and installation; test-slow has them, too"
	@echo "make test-spark SPARK=4.1  run those with Spark on that release, in an environment of its own"
	@echo "make test-oldest  run those without Spark and Java with the lowest versions that pyproject.toml allows, likewise"
	@echo "make test-clients  run releases of Kafka clients against the server and a broker, into docs/reference/clients.md (CLIENTS=java,sarama: only these)"
	@echo "make mutants    change operators of each module and list what no test notices (ONLY=sparklog/log: only there)"
	@echo "make notebook   run notebooks/ and store them with their plots"
	@echo "make docs       build the site of docs/ into build/site, and check every link in it"
	@echo "make lint       ruff, mypy"
	@echo "make bench      measure, against Parquet, Kafka clients and a bare Python data source"
	@echo "make bench-peers  sparklog beside Kafka, Delta and pyarrow, into docs/design/peers.md (ROUNDS=5 RECORDS=2000000)"
	@echo "make venv       only set up $(VENV)"
	@echo "make clean      remove what these made, but for environments"

venv: $(COMPILED)

$(INSTALLED): pyproject.toml scripts/set_up.sh scripts/check_machine.py
	@sh scripts/set_up.sh $(VENV) $(PYTHON)
	@touch $@

# The kernels go into their disk cache here, so that no query waits for a compiler.
$(COMPILED): $(INSTALLED) $(wildcard sparklog/format/*.py sparklog/format/*/*.py)
	@$(PY) -m sparklog.format.kernels.warm
	@touch $@

# Modules of tests are compiled here by one process, while mypy runs beside it (.ci/run); else each that runs tests does.
ready: $(COLLECTED)

$(COLLECTED): $(COMPILED)
	@$(PY) -m pytest --collect-only -q >/dev/null 2>&1 || true
	@touch $@

test: venv
	$(PY) -m pytest $(PARALLEL) -p tests.support.durations

test-fast: venv
	$(PY) -m pytest $(PARALLEL) -m "not slow and not sweep and not spark and not java"

# With the newest version of everything, and what needs no Spark with the oldest. Long sweeps have a core each.
test-slow: TEST_PROCESSES = 2
test-slow: venv test-oldest
	@$(PY) scripts/dependency_versions.py installed
	SPARKLOG_SEEDS=$(SEEDS) $(PY) -m pytest $(PARALLEL) -m "slow or property" \
		-p tests.support.slow_report --slow-report $(SLOW_REPORT) -p tests.support.reached --all-reached

test-packaging: venv
	$(PY) -m pytest -m "slow or not slow" $(PACKAGING)

test-spark: venv
	@sh scripts/spark_version.sh $(VENV) $(SPARK)

test-oldest: venv
	@sh scripts/oldest_versions.sh $(VENV) $(PARALLEL) -m "not slow and not spark and not java"

test-clients: venv
	PYTHONPATH=. $(PY) -m tests.serve.peers.matrix --only "$(CLIENTS)"

mutants: venv
	$(PY) -m scripts.mutants --per-module $(PER_MODULE) --only $(ONLY)

demo: venv
	@$(PY) scripts/check_machine.py
	@$(PY) examples/demo.py

notebook: venv
	$(PY) scripts/run_notebook.py

# mkdocs asks for nothing over the network, nor does the site.
docs: venv
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "look at it: $(PY) -m http.server --directory build/site 8000"

lint: $(INSTALLED)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

bench: venv
	$(PY) -m benchmarks

bench-peers: venv
	@sh scripts/spark_version.sh $(VENV) 4.2 --version
	@$(PEERS) -c "import confluent_kafka" 2>/dev/null || $(PEERS) scripts/install.py "confluent-kafka>=2.5,<3"
	env -u PYSPARK_PYTHON -u PYSPARK_DRIVER_PYTHON $(PEERS) -m benchmarks peers --rounds $(ROUNDS) --records $(RECORDS)

clean:
	rm -rf .demo build dist spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path "./$(VENV)/*" -prune -exec rm -rf {} +
