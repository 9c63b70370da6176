# Two commands do everything: `make demo` and `make test`. Both make the environment they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SPARK := $(VENV)/.installed-spark

DATA ?= simulated
RUN_FILE := pipelines/configs/$(DATA).yaml
FOLDER ?= build/$(DATA)

.PHONY: demo study test lint unit unit-keras-3 unit-legacy-keras unit-everything clean

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[pipelines,dev]'
	touch $@

# Spark is large, and runs on Java only: without Java its test is skipped.
$(SPARK): $(INSTALLED)
	if command -v java >/dev/null; then \
	  $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[spark]'; \
	fi
	touch $@

# Raw log to verdict and exported model. `make demo DATA=kuairand SOURCE=folder` does it on real logs.
demo: $(INSTALLED)
ifeq ($(DATA),simulated)
	$(BIN)/python -m pipelines simulate $(FOLDER)/log
else
	@test -n "$(SOURCE)" || { echo "error: DATA=$(DATA) needs SOURCE=folder of the published files"; exit 2; }
	$(BIN)/python -m pipelines import $(DATA) "$(SOURCE)" $(FOLDER)/log
endif
	$(BIN)/python -m pipelines prepare $(RUN_FILE) --folder $(FOLDER)
	$(BIN)/python -m pipelines audit $(RUN_FILE) --folder $(FOLDER)
	$(BIN)/python -m pipelines ab $(RUN_FILE) --folder $(FOLDER)
	$(BIN)/python -m pipelines export $(FOLDER)/ab/runs/treatment-seed0 $(FOLDER)/export

# The study of docs/results.md: `make study SOURCE=folder of KuaiRand-Pure`. What is finished is kept.
STUDY := build/study
study: $(INSTALLED)
	@test -n "$(SOURCE)" || { echo "error: study needs SOURCE=folder of the published files of KuaiRand-Pure"; exit 2; }
	test -d $(STUDY)/simulated/prepared || { $(BIN)/python -m pipelines simulate $(STUDY)/simulated/log && \
	  $(BIN)/python -m pipelines prepare pipelines/configs/simulated.yaml --folder $(STUDY)/simulated; }
	test -d $(STUDY)/kuairand/prepared || { $(BIN)/python -m pipelines import kuairand "$(SOURCE)" $(STUDY)/kuairand/log && \
	  $(BIN)/python -m pipelines prepare pipelines/configs/kuairand.yaml --folder $(STUDY)/kuairand; }
	for data in simulated kuairand; do \
	  $(BIN)/python -m pipelines study pipelines/configs/$${data}_study.yaml --folder $(STUDY)/$$data && \
	  $(BIN)/python -m pipelines harm pipelines/configs/$$data.yaml --folder $(STUDY)/$$data || exit; \
	done

test: lint unit

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Once for each Keras generation, side by side: most of a test's time is one thread that traces
# graphs. The pipelines run on legacy Keras alone (TFRS demands it). What has no Keras in it runs
# once; `make unit-everything` runs it under both all the same.
NO_KERAS := $(addprefix tests/seqdenoise/,evaluation \
  $(patsubst %,test_%.py,debiased debiased_theory loss_identities losses masks mean_log_odds numerics pair_sums triplet views) \
  $(patsubst %,transport/test_%.py,against_references alignment never_nan second_look solver))

unit: $(SPARK)
	+$(MAKE) --jobs=2 --output-sync=target unit-keras-3 unit-legacy-keras

unit-keras-3: $(INSTALLED)
	$(BIN)/python -m pytest --ignore=tests/pipelines

unit-legacy-keras: $(SPARK)
	TF_USE_LEGACY_KERAS=1 $(BIN)/python -m pytest tests seqdenoise pipelines $(addprefix --ignore=,$(NO_KERAS))

unit-everything: unit-keras-3
	TF_USE_LEGACY_KERAS=1 $(BIN)/python -m pytest tests seqdenoise pipelines

clean:
	rm -rf $(VENV) build
