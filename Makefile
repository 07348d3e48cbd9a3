# Each target sets up what it needs in .venv, on a machine with Python 3.11, make and a network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := build/run
# One worker for each core, and one thread for each worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

.PHONY: run test test-slow benchmark docs clean

run: $(VENV)/.has-run  ## predict, explain, train and report on bundled data
	@mkdir -p $(RUN)
	@echo "[1/4] Explain the gap of three sites (GENERATED, 256 rows each)"
	@$(BIN)/fedgram moments examples/three_sites.csv --client site --targets east,north -o $(RUN)/moments.json > $(RUN)/moments.txt
	@$(BIN)/fedgram explain $(RUN)/moments.json --lambda-h 0.1 --lambda-w 0.1 --figure $(RUN)/prediction.png
	@echo "[2/4] Train networks on swimmer-mini (GENERATED), far below the paper's scale: about a minute"
	@$(BIN)/fedgram train swimmer-mini --procedure ordinary --procedure proximal --procedure solved --seeds 2 \
		--backbone resmlp-small --features 32 --rounds 4 --epochs 40 --device cpu --out $(RUN)/runs > $(RUN)/training.txt 2>&1
	@$(BIN)/fedgram runs compare $(RUN)/runs --figure $(RUN)/training.png
	@echo "[3/4] Reproduce the paper's exact experiments at quick scale: about a minute"
	@$(BIN)/fedgram reproduce ufm --quick --out $(RUN)/results > $(RUN)/claims.txt 2>&1 || (cat $(RUN)/claims.txt; exit 1)
	@echo "[4/4] Write the report, with the committed GPU results"
	@for kept in results/*/results; do mkdir -p $(RUN)/$$kept && cp $$kept/* $(RUN)/$$kept/; done
	@$(BIN)/fedgram report --out $(RUN)/results --runs $(RUN)/runs -o $(RUN)/report.html > $(RUN)/report.txt
	@echo "Report: $(RUN)/report.html"

test: $(VENV)/.has-dev  ## linters, types, import contract, quick tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST)

test-slow: $(VENV)/.has-dev  ## every test, the slow ones too
	$(PYTEST) -m ""

benchmark: $(VENV)/.has-benchmark  ## side by side with other libraries; prints ratios
	$(BIN)/python benchmarks/barycenter.py --figure build/barycenter.png
	$(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/training.py

docs: $(VENV)/.has-docs  ## the documentation as pages in site/
	$(BIN)/mkdocs build --strict

$(VENV)/.has-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedgram[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) build site
