# Everything runs in .venv, which is built from nothing when it is missing.
PYTHON ?= python3
TEXT ?= Hello, how are you today?
VENV := .venv
BIN := $(VENV)/bin
# Most of what is installed is never imported: bytecode is made of what is, when it is.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test test-slow lint clean

demo: $(VENV)/.demo-ready  ## speak TEXT with the small demonstration voice into out.wav
	$(BIN)/python demo_pipeline.py --model demo-voice --text "$(TEXT)" --output out.wav

test: lint  ## linters and the whole default test suite
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

test-slow: $(VENV)/.test-ready  ## the tests marked slow, minutes each
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	git ls-files csrc | grep -E '\.(cu|cuh|h|cpp)$$' | xargs -r $(BIN)/clang-format --dry-run --Werror

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by itself: its pin decides which build the rest resolves against.
$(VENV)/.demo-ready: requirements.txt setup.py | $(BIN)/python
	$(PIP) "$$(grep ^torch requirements.txt)"
	$(PIP) -r requirements.txt --editable .[pipecat]
	@touch $@

# The official package is the oracle of the tests. It is installed without its dependencies, most of
# which serve its web demo; [reference] lists the ones its model code needs.
$(VENV)/.test-ready: $(VENV)/.demo-ready
	$(PIP) --editable .[dev,reference,plots]
	$(PIP) --no-deps qwen-tts==0.1.1
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
