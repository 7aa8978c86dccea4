# Two commands for a newcomer: `make demo` and `make test`. Both build .venv first, of exactly what is locked.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# What pip takes torch's build from is its own configuration; empty leaves torch out.
TORCH ?= torch==2.13.0
# requirements/LOCK.txt is what gets installed: locked, or floor.
LOCK ?= locked
# Test processes at once: two more than two cores, since tests wait for processes of their own, and for time to pass.
JOBS ?= 4
# What waits for nothing: as many as cores.
FAST_JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
SUITE = pytest -n $(JOBS) -p no:randomly --durations 20 --durations-min 1
PYTEST = $(BIN)/python -m $(SUITE)
# The suite starts some two hundred processes; where compiled modules are not kept, each compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
PROTOS := $(sort $(wildcard protos/v1/*.proto))
SERVICES := protos/v1/access.proto protos/v1/planner.proto protos/v1/stage_daemon.proto

.PHONY: demo train-demo train-matrix test test-fast test-nightly test-shuffled test-floor test-without-torch coverage fuzz soak mutants bench survey
.PHONY: check lint types imports protos protos-check deploy-check lock upgrade clean

demo: $(VENV)/installed.stamp
	$(BIN)/python -m examples.embed_sentences

# Trains a small GPT over daemons, through the loss of a worker, and compares the losses with one process's.
train-demo: $(VENV)/installed.stamp
	$(BIN)/python -m examples.train_tiny_gpt

# Trainings drawn at random on daemons, each beside the unsplit step; CASES=20 FIRST=100 for others.
CASES ?= 200
FIRST ?= 0
train-matrix: $(VENV)/installed.stamp
	$(BIN)/python -m benchmarks.training_matrix $(CASES) $(FIRST)

# The whole suite, the same examples in the same order each time.
test: $(VENV)/installed.stamp
	$(PYTEST)

# What needs neither a process nor a database and is quick: for while you write.
test-fast: $(VENV)/installed.stamp
	$(PYTEST) -n $(FAST_JOBS) -m "not services and not slow and not nightly"

# What `make test` has examples of in its whole breadth: every family, every kind of cluster, and four times as many
# random examples, the same in every run.
test-nightly: $(VENV)/installed.stamp
	PLANNER_FUZZ_FACTOR=4 $(PYTEST) -m ""

# In another order; SEED=n repeats one.
SEED ?= $(shell date +%s)
test-shuffled: $(VENV)/installed.stamp
	$(PYTEST) -p randomly -p "no:cacheprovider" --randomly-seed $(SEED)

# On the oldest versions that pyproject.toml allows.
test-floor:
	$(MAKE) test VENV=.venv-floor LOCK=floor

# As on a planner's host: what imports torch is left out. For interpreters too that no build of torch is at hand for:
# make test-without-torch PYTHON=python3.13 VENV=.venv-3.13
test-without-torch:
	$(MAKE) test TORCH=

# The suite with branches counted, in this process and all that it starts; fails where a package is under its floor.
coverage: $(VENV)/installed.stamp
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m $(SUITE)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m tests.coverage_floor

# Random tests on examples of new seeds, for so long. Prints a command for each failure that repeats it.
MINUTES ?= 10
fuzz: $(VENV)/installed.stamp
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --jobs $(JOBS)

# The fault tests in full, for hours: kills at other moments each time; SEED=n repeats one, SHARE=0.1 does a tenth,
# SOAK=PATH some. The lines that begin with "soak:" are its figures.
SHARE ?= 1
SOAK ?= tests/faults tests/security/test_listeners.py tests/security/test_mutual_tls.py
soak: $(VENV)/installed.stamp
	@echo "make soak SEED=$(SEED) SHARE=$(SHARE)"
	PLANNER_SOAK=$(SEED) PLANNER_SOAK_SHARE=$(SHARE) $(BIN)/python -m pytest -p no:randomly -q -s --timeout 7200 --durations 0 $(SOAK)

# Puts each bug of tests/mutants into a copy of the source; the tests it names have to fail. MUTANTS="store- wire-": those.
MUTANTS ?=
mutants: $(VENV)/installed.stamp
	$(BIN)/python -m tests.mutants.run --jobs $(JOBS) $(MUTANTS)

# Every operator of torch's tests and every architecture of tests/models, one after the other: which come through, and
# why not; half an hour on two cores. Both say so by their exit codes; the second runs whatever the first finds.
survey: $(VENV)/installed.stamp
	-$(BIN)/python -m tests.models.operators
	$(BIN)/python -m tests.models.survey

# Some tables of docs/benchmarks.md, one after the other; half an hour on two cores. The others name their commands there.
bench: $(VENV)/installed.stamp
	$(BIN)/python -m benchmarks.place_instances
	$(BIN)/python -m benchmarks.compare_torch_partitioner
	$(BIN)/python -m benchmarks.plan_llama_70b
	$(BIN)/python -m benchmarks.plan_growth
	$(BIN)/python -m benchmarks.answer_while_planning
	$(BIN)/python -m benchmarks.calls_over_tls
	$(BIN)/python -m benchmarks.copied_stages
	$(BIN)/python -m benchmarks.first_answer_after_loss
	$(BIN)/python -m benchmarks.predicted_stage_times
	$(BIN)/python -m benchmarks.predicted_steps
	$(BIN)/python -m benchmarks.export_llama_70b
	$(BIN)/python -m benchmarks.training_schedules
	$(BIN)/python -m benchmarks.saved_activations
	$(BIN)/python -m benchmarks.recomputed_activations
	$(BIN)/python -m benchmarks.submit_checkpoint
	$(BIN)/python -m benchmarks.pipeline_peers
	$(BIN)/python -m benchmarks.timeline_cost
	$(BIN)/python -m benchmarks.between_hosts
	$(BIN)/python -m benchmarks.training_peers
	$(BIN)/python -m benchmarks.training_memory
	$(BIN)/python -m benchmarks.checkpoints_while_training

check: lint types imports protos-check deploy-check

lint: $(VENV)/installed.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: $(VENV)/installed.stamp
	$(BIN)/mypy

imports: $(VENV)/installed.stamp
	$(BIN)/lint-imports --no-cache

protos: $(VENV)/installed.stamp
	$(BIN)/python -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --python_out=. --mypy_out=quiet:. $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--grpc_python_out=. --mypy_grpc_out=quiet:. $(SERVICES)

# Regenerates and fails if what is committed differs.
protos-check: protos
	git diff --exit-code -- protos
	@test -z "$$(git ls-files --others --exclude-standard -- protos)" || { echo "generated files are not committed"; exit 1; }

deploy-check: $(VENV)/installed.stamp
	$(BIN)/hadolint deploy/*.Containerfile
	deploy/verify-units.sh

# requirements/*.txt from pyproject.toml; versions that are locked stay.
COMPILE = $(BIN)/uv pip compile --quiet --generate-hashes --custom-compile-command "make lock" $(UPGRADE)
INPUTS := pyproject.toml requirements/torch-needs.in
lock:
	$(COMPILE) --universal --python-version 3.11 --extra dev --extra demo --output-file requirements/locked.txt $(INPUTS)
	$(COMPILE) --resolution lowest-direct --python-version 3.11 --extra dev --extra demo --output-file requirements/floor.txt $(INPUTS)
	$(COMPILE) --no-deps --output-file requirements/without-needs.txt requirements/without-needs.in
	$(COMPILE) --no-deps --output-file requirements/torchao.txt requirements/torchao.in

# The newest versions that pyproject.toml allows. Then: make check test demo.
upgrade:
	$(MAKE) lock UPGRADE=--upgrade

clean:
	rm -rf .venv .venv-* build *.egg-info

# By hash, all but torch; nothing in the lock asks for torch, so pip never chooses a build of its own.
$(VENV)/installed.stamp: requirements/$(LOCK).txt requirements/without-needs.txt requirements/torchao.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement requirements/$(LOCK).txt
	$(BIN)/pip install --quiet --require-hashes --no-deps --requirement requirements/without-needs.txt
	$(BIN)/pip install --quiet --require-hashes --no-deps --target $(VENV)/torchao --requirement requirements/torchao.txt
	$(if $(TORCH),$(BIN)/pip install --quiet $(TORCH))
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q access planner stage_daemon protos
	$(BIN)/python -m planner.compile_kernels
	touch $@
