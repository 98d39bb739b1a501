# Everything runs in .venv, which is built from nothing when it is missing.
PYTHON ?= python3
TEXT ?= Hello, how are you today?
VENV := .venv
BIN := $(VENV)/bin
# Most of what is installed is never imported: bytecode is made of what is, when it is. Images of
# containers often forbid that; then each process would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
PINS := --constraint deploy/constraints.txt  # the image's versions, so that the tests run with them

# $(call waiting,WORDS,COMMAND): say what is done and how long it takes, then every few seconds that it
# is still being done. pip by itself says nothing for minutes, or a line for each of 200 packages.
SECONDS_BETWEEN_WORDS := 8
COMMA := ,
define waiting
@echo "$(1)"; \
( waited=0; while sleep $(SECONDS_BETWEEN_WORDS) >&- 2>&-; do \
    waited=$$((waited + $(SECONDS_BETWEEN_WORDS))); echo "  $$waited seconds so far"; \
done ) & words=$$!; trap "kill $$words" EXIT; trap "exit 130" INT TERM; $(2)
endef

# One more than there are cores, because tests wait for servers and players in a quarter of their time.
# Each further one imports torch, transformers and Pipecat once more.
WORKERS ?= $(shell $(PYTHON) -c "import os; print(min(4, os.cpu_count() + 1))")

.PHONY: help demo test test-ci test-torch test-user test-slow lint style rehearse-gpu clean nvcc ledger

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1: /p' Makefile

# The text goes through the environment, so that neither make nor the shell reads anything into it;
# make would export its own TEXT, too, with every $ in it expanded.
unexport TEXT
demo: export DEMO_TEXT := $(value TEXT)
demo: $(VENV)/.demo-ready  ## speak TEXT with the small demonstration voice into out.wav
	$(BIN)/python demo_pipeline.py --model demo-voice --text="$$DEMO_TEXT" --output out.wav

# What ran and what was skipped, for `ledger`.
REPORTS := build/reports

# The type checker keeps one core busy for half a minute, so the tests run beside it.
test: style  ## linters, type checker and the default tests, some 12 CPU-minutes
	$(BIN)/mypy & types=$$!; \
	$(BIN)/python -m pytest --junit-xml $(REPORTS)/test.xml --numprocesses $(WORKERS) --dist loadfile; tests=$$?; \
	wait $$types || { echo "mypy failed: its errors are above" >&2; exit 1; }; exit $$tests

test-ci: $(VENV)/.test-ready  ## the tests marked ci: compilers, browsers, Ray, soak; some 31 CPU-minutes
	$(BIN)/python -m pytest -m "ci and not slow and not alone" --numprocesses $(WORKERS) --dist loadfile --junit-xml $(REPORTS)/ci.xml
	$(BIN)/python -m pytest -m "ci and alone"

ledger: $(VENV)/.test-ready  ## whether `test` and `test-ci` ran what docs/ledger.md names
	$(BIN)/python -m pytest -q tests/house/test_ledger.py --report $(REPORTS)/test.xml --report $(REPORTS)/ci.xml

test-torch: $(VENV)/.test-ready  ## the engine on PyTorch's decoder, without native code
	$(BIN)/python -m pytest --backend torch -m "not slow and not ci and not own_backend" --numprocesses $(WORKERS) --dist loadfile tests/engine

# What `make demo` installs, and what runs tests: neither changes how the server or Pipecat works.
USER_VENV := .venv-user
TEST_TOOLS := pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis httpx

test-user:  ## server, Pipecat and commands where only `make demo` was run
	@$(MAKE) --no-print-directory VENV=$(USER_VENV) $(USER_VENV)/.demo-ready
	$(USER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(PINS) $(TEST_TOOLS)
	$(USER_VENV)/bin/python -m pytest --numprocesses $(WORKERS) --dist loadfile \
	    --at-least 1200 tests/server tests/pipecat tests/cli

test-slow: $(VENV)/.test-ready  ## the tests marked slow, minutes each
	$(BIN)/python -m pytest -m slow

lint: style  ## ruff, clang-format and mypy
	$(BIN)/mypy

style: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files csrc | grep -E '\.(cu|cuh|h|cpp)$$' | xargs -r $(BIN)/clang-format --dry-run --Werror

# Without one the tests of what it makes of the kernel are skipped. The build knows where to look.
FIND_NVCC := from qwen_megakernel.decoders.kernel import build; print(build.find_nvcc())
nvcc: $(VENV)/.test-ready  ## an nvcc from NVIDIA's Python packages, where none is found
	$(BIN)/python -c "$(FIND_NVCC)" 2>/dev/null || $(PIP) --editable .[nvcc]
	$(BIN)/python -c "$(FIND_NVCC)"

# With an older Python pip would refuse our requirements only after minutes, without naming Python.
OLD := sys.exit("$(PYTHON) is Python %s; this project needs 3.11 or newer: name one, as in PYTHON=python3.12" % found)
define CHECK_PYTHON
import sys
found = ".".join(map(str, sys.version_info[:3]))
if sys.version_info < (3, 11): $(OLD)
endef
export CHECK_PYTHON

# What came with Python may be an old pip, which takes twice as long.
$(BIN)/python:
	@$(PYTHON) -c "$$CHECK_PYTHON"
	$(call waiting,Making $(VENV): some 15 seconds.,\
	    $(PYTHON) -m venv $(VENV) && $(PIP) --upgrade pip)

# torch first and by itself: its pin decides which build the rest resolves against.
$(VENV)/.torch-ready: requirements.txt | $(BIN)/python
	$(call waiting,Installing PyTorch: one to five minutes$(COMMA) by your network.,\
	    $(PIP) "$$(grep ^torch requirements.txt)")
	@touch $@

$(VENV)/.demo-ready: $(VENV)/.torch-ready pyproject.toml
	$(call waiting,Installing this package with Pipecat and its server: about a minute.,\
	    $(PIP) $(PINS) -r requirements.txt --editable .[pipecat$(COMMA)server])
	@touch $@

# The official package is the oracle of the tests. It is installed without its dependencies, most of
# which serve its web demo; [reference] lists the ones its model code needs.
$(VENV)/.test-ready: $(VENV)/.torch-ready pyproject.toml
	$(call waiting,Installing this package and all that its tests need: two to five minutes.,\
	    $(PIP) $(PINS) -r requirements.txt --editable .[pipecat$(COMMA)server$(COMMA)dev$(COMMA)reference$(COMMA)plots] \
	    && $(PIP) --no-deps qwen-tts==0.1.1)
	@touch $@ $(VENV)/.demo-ready

# Everything of ours that only a GPU executes, without one (tools/fake_gpu): the steps of gpu_check.sh
# at toy size, with the tests that need a GPU. Downloads gigabytes: PyTorch's CUDA build.
REHEARSAL := .venv-cuda
REHEARSED := first why changed listeners reliability more

rehearse-gpu: $(REHEARSAL)/.ready
	set -e; export PATH="$(CURDIR)/$(REHEARSAL)/bin:$$PATH" PYTHON=python; \
	python tools/fake_gpu/run.py python -m pytest tests/tools/test_fake_gpu.py; \
	for set in $(REHEARSED); do \
	    python tools/fake_gpu/run.py tools/gpu_check.sh --toy --set $$set --seconds 1500 --out build/rehearsal/$$set; \
	done

$(REHEARSAL)/.ready:
	$(PYTHON) -m venv $(REHEARSAL)
	$(REHEARSAL)/bin/python -m pip install --quiet torch==2.11.0 \
	    huggingface-hub ninja numpy pytest safetensors tokenizers
	@touch $@

clean:
	rm -rf $(VENV) $(USER_VENV) $(REHEARSAL) build dist *.egg-info
