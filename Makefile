# Everything happens in .venv; PYTHON is the interpreter that it is made with.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed
DEMO_STAMP = $(VENV)/.installed-demo
# Without bytecode every process compiles TensorFlow anew: three times the processor time of an import. uv compiles
# nothing by itself, and many images forbid Python to.
unexport PYTHONDONTWRITEBYTECODE
export UV_COMPILE_BYTECODE = 1

.PHONY: demo dev test test-rest test-hosts test-gpu test-kubernetes test-all test-durations chaos keras-suite keras-table matrix matrix-oldest matrix-programs lint docs docs-links module-map keywords notebooks address dist clean

# A demo needs three quarters of what tests need.
demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/python examples/mnist/fed.py --master 'local[2]' $(ARGS)

# The environment in which all tests and checks run.
dev: $(STAMP)
	@echo "Ready. Next: make lint, and $(BIN)/python -m pytest -n 0 tests/unit/test_config.py"

# The first rung: what needs no cluster, and a test of every feature on real nodes. As many processes as cores and memory
# allow (tests/support/ladder.py), each with its own Spark sessions.
test: $(STAMP)
	$(BIN)/python -m pytest -m quick -n auto $(ARGS)

# All other tests, but those on several hosts; of the table of Keras every eighth cell of the column that matters most.
test-rest: export TFOS_TEST_TABLE ?= MultiWorkerMirrored
test-rest: export TFOS_TEST_TABLE_SHARE ?= 8
test-rest: $(STAMP)
	$(BIN)/python -m pytest -m 'not quick' -n auto --ignore=tests/hosts --ignore=tests/gpu --ignore=tests/kubernetes $(ARGS)

# Tests on several hosts, made of namespaces of Linux, one after another: as root, with iproute2 and nftables.
test-hosts: $(STAMP)
	$(BIN)/python -m pytest -n 0 tests/hosts $(ARGS)

# Tests on a real Kubernetes of one node, which is built (once, an hour on two cores), started and ended here: as root, with
# Go and the packages that CONTRIBUTING.md names. Not for CI; run before each release.
KUBERNETES = .venvs/kubernetes
SPARK_FOLDER = $(shell $(BIN)/python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
SPARK_VERSION = $(shell $(BIN)/python -c 'import pyspark; print(pyspark.__version__)')
$(KUBERNETES)/bin/hyper: tests/support/real_kubernetes/build.sh tests/support/real_kubernetes/hyper.go
	tests/support/real_kubernetes/build.sh $(abspath $(KUBERNETES))
test-kubernetes: $(STAMP) $(KUBERNETES)/bin/hyper
	tests/support/real_kubernetes/images.sh $(KUBERNETES) . $(SPARK_FOLDER) $(SPARK_VERSION)
	$(BIN)/python -m pytest -n 0 tests/kubernetes $(ARGS)

# Tests on a machine with a GPU, with JAX for it: they need neither Spark nor TensorFlow, and so no environment of ours.
test-gpu:
	KERAS_BACKEND=jax PYTHONPATH=src:. python3 -m pytest --noconftest -p no:cacheprovider tests/gpu $(ARGS)

# Every test, in one run.
test-all: export TFOS_TEST_TABLE ?= MultiWorkerMirrored
test-all: export TFOS_TEST_TABLE_SHARE ?= 8
test-all: $(STAMP)
	$(BIN)/python -m pytest -n auto --ignore=tests/gpu --ignore=tests/kubernetes $(ARGS)

# Every test, to write the seconds that each takes to tests/durations.json.
test-durations: ; $(MAKE) test-all ARGS="--write-durations $(ARGS)"

# What Keras and tf.data offer under each strategy, compared with one process; writes docs/keras.md.
keras-table: $(STAMP)
	$(BIN)/python -m pytest tests/cluster/keras/test_table.py --write-keras-table $(ARGS)

# Failures drawn at random, for ten minutes on each master.
chaos: $(STAMP)
	TFOS_TEST_CHAOS_SECONDS=600 $(BIN)/python -m pytest -s tests/chaos $(ARGS)

# Tests of Keras itself in the nodes of a cluster, without a strategy and with one (docs/benchmarks/keras-suite.md).
keras-suite: $(STAMP)
	$(BIN)/python -m tests.support.keras_suite --page docs/benchmarks/keras-suite.md $(ARGS)

# The documentation site, in build/site, with its links checked: files and anchors of internal ones, the form of
# others. Needs Python 3.11, and npm once, for the library that draws diagrams.
SPHINX = $(BIN)/python -m sphinx -q -W --keep-going -c docs/_site
docs: module-map
	@$(BIN)/python -c 'import sphinx' || { echo "make docs needs Sphinx 9, and so a $(VENV) with Python 3.11 or newer"; exit 1; }
	$(BIN)/python tools/diagrams.py
	$(BIN)/python tools/mermaid.py
	rm -rf build/site build/site-doctrees
	$(SPHINX) -j 2 -d build/site-doctrees . build/site
	$(BIN)/python tools/site_links.py build/site

# Links to other hosts: each is opened, which takes minutes and a network.
docs-links: module-map
	$(BIN)/python tools/mermaid.py
	$(SPHINX) -b linkcheck -d build/site-linkcheck . build/linkcheck

# The map of modules, from their docstrings; writes docs/architecture/modules.md.
module-map: $(STAMP)
	$(BIN)/python tools/module_map.py

# The keywords that are declared once, for type checkers and editors, and the table of settings; writes
# src/tensorflowonspark/keywords.pyi and docs/reference/settings.md.
keywords: $(STAMP)
	$(BIN)/python tools/keywords.py
	$(BIN)/python -m tools.settings_table

# The notebooks of examples/notebooks, executed and rewritten with their output.
notebooks: $(STAMP)
	PYSPARK_PYTHON=$(abspath $(BIN)/python) $(BIN)/python tools/notebooks.py

# The addresses of the project, from [project.urls] of pyproject.toml; writes the pages that name one.
address: $(STAMP)
	$(BIN)/python -m tools.address

# The wheel, the source distribution and a list of what an installation gets, in dist/, checked. Equal commits give equal
# bytes.
dist: $(STAMP)
	$(BIN)/python -m tools.dist $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/lint-imports tools/importlinter_types.toml --no-logo --no-cache
	$(BIN)/python -m tools.docstrings

# The same short set of tests with each combination of Python, Spark and TensorFlow, and with other versions of Java;
# writes docs/compatibility.md.
# ARGS="--corners" runs three of them, ARGS="--next" pre-releases, ARGS="--help" lists the options.
matrix:
	$(PYTHON) -m tools.matrix $(ARGS)

# A long list of tests with the oldest Spark and TensorFlow that are supported, on one master. (Their environment stays.)
# Left out are JAX and MLflow, and what the pages of Keras say: that holds for the newest versions.
OLDEST = .venvs/oldest
OLDEST_PYTHON ?= $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
OLDEST_TESTS = tests/unit/keras tests/cluster/keras tests/cluster/training tests/cluster/lifecycle/test_lifecycle.py tests/spark/frames \
  tests/spark/ml/test_model.py tests/unit/ml/test_summary.py tests/spark/tfrecords/test_dataframes.py tests/unit/tfrecords/test_framing.py \
  tests/unit/v2/test_pipeline.py tests/spark/v2/test_pipeline.py tests/cluster/v2/test_pipeline.py tests/unit/v2/test_dfutil.py \
  tests/spark/v2/test_dfutil.py tests/cluster/v2/test_programs.py::test_a_program_on_one_machine \
  $(foreach each,jax jax_layout suite table,--ignore=tests/cluster/keras/test_$(each).py) \
  --deselect=tests/cluster/training/test_evaluator.py::test_a_loop_of_ones_own_is_shown_and_logged_as_fit_is
matrix-oldest: $(OLDEST)/.installed
	TFOS_TEST_MASTERS=local $(OLDEST)/bin/python -m pytest -n auto $(OLDEST_TESTS) $(ARGS)

# All programs of TensorFlowOnSpark 2.x with these versions: too long for CI beside the rest.
matrix-programs: $(OLDEST)/.installed
	TFOS_TEST_MASTERS=local $(OLDEST)/bin/python -m pytest tests/cluster/v2/test_programs.py $(ARGS)

$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m tools.matrix --python $(OLDEST_PYTHON) --spark 3.5 --tensorflow 2.16 --install $(OLDEST) --extra test-oldest --with 'pyarrow==15.*' --with 'setuptools<82'
	touch $@

# A folder of benchmarks/: lifecycle, feed, feed_start, files, first_rows, inference, peers, trainers, tfrecord (needs
# Maven), scale, growth, metrics, dashboard, recovery, checkpoints, formats, run, tune, each, windows, packing, steps,
# workers, connections, order, frames, network (as root) or revisions.
# ARGS="--publish" puts the report into its page in docs/benchmarks.
benchmark-%: $(STAMP)
	$(BIN)/python -m benchmarks.$* $(ARGS)

# uv takes a fraction of pip's time. It does not read pip's settings: where these name another index, pip installs.
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$$($(PYTHON) --version) is too old: use Python 3.10 to 3.13, as in: make PYTHON=python3.12"; exit 1; }
	@command -v java >/dev/null || test -n "$$JAVA_HOME" || \
	  { echo "Spark needs Java 17 or newer, and there is none: install it (Debian: apt install openjdk-17-jre-headless) or set JAVA_HOME"; exit 1; }
	@echo "Installing into $(VENV): $(2), some minutes the first time"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[$(1)]' || \
	  $(BIN)/python -m pip install --quiet --editable '.[$(1)]'
	touch $@
endef
$(STAMP): pyproject.toml
	$(call INSTALL,test$(comma)lint$(comma)docs,4 GB of packages)
$(DEMO_STAMP): pyproject.toml
	$(call INSTALL,demo,3 GB of packages)
comma := ,

clean:
	rm -rf $(VENV) .venvs demo-output build dist
