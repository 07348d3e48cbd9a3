# Each target sets up what it needs in .venv, on a machine with Python 3.11, make and a network.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := build/run
# One worker for each core, and one thread for each worker. Quick tests have at most four workers, because
# imports take 8 CPU seconds in each.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile

.PHONY: run test test-slow benchmark docs clean

run: $(VENV)/.has-run  ## advise, explain, train and report on bundled data
	@mkdir -p $(RUN)
	@echo "[1/5] Should 12 air-quality stations federate? (REAL, beijing-stations, 300 rows each): half a minute"
	@$(BIN)/fedgram advise beijing-stations --units "µg/m³" --backbone wide-deep-64 --figure $(RUN)/advice.png 2> $(RUN)/advice.log
	@echo "[2/5] Where would averaging only the last layer end, and why?"
	@$(BIN)/fedgram explain src/fedgram/data/datasets/embedded/beijing_stations.csv.gz --client station --targets PM2.5,NO2 \
		--where "time < '2016-03-01'" --units "µg/m³" --figure $(RUN)/prediction.png
	@echo "[3/5] Train networks on swimmer-mini (GENERATED), far below the paper's scale: about a minute"
	@$(BIN)/fedgram train swimmer-mini --procedure ordinary --procedure proximal --procedure solved --seeds 2 \
		--backbone resmlp-small --features 32 --rounds 4 --epochs 40 --device cpu --out $(RUN)/runs > $(RUN)/training.txt 2>&1
	@$(BIN)/fedgram runs compare $(RUN)/runs --figure $(RUN)/training.png
	@echo "[4/5] Reproduce the paper's exact experiments at quick scale: about a minute"
	@$(BIN)/fedgram reproduce ufm --quick --out $(RUN)/results > $(RUN)/claims.txt 2>&1 || (cat $(RUN)/claims.txt; exit 1)
	@echo "[5/5] Write the report, with the committed GPU results"
	@for kept in results/*/results; do mkdir -p $(RUN)/$$kept && cp $$kept/* $(RUN)/$$kept/; done
	@$(BIN)/fedgram report --out $(RUN)/results --runs $(RUN)/runs -o $(RUN)/report.html > $(RUN)/report.txt
	@echo "Report: $(RUN)/report.html"

test: $(VENV)/.has-dev  ## linters, types, import contract, quick tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(PYTEST) --maxprocesses 4

test-slow: $(VENV)/.has-dev $(VENV)/.has-cluster  ## every test, the slow ones and those with Ray too
	$(PYTEST) -m ""

benchmark: $(VENV)/.has-benchmark  ## side by side with other libraries; prints ratios
	$(BIN)/python benchmarks/barycenter.py --figure build/barycenter.png
	$(BIN)/python benchmarks/moments.py
	$(BIN)/python benchmarks/training.py

docs: $(VENV)/.has-docs  ## the documentation as pages in site/; executes its examples, about two minutes
	@OMP_NUM_THREADS=1 NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "Documentation: site/index.html"

$(VENV)/.has-%: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedgram[$*] into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@

clean:
	rm -rf $(VENV) build site
