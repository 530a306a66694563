# make demo    set everything up and see what retrieval does for a small language model
# make serve-demo   set everything up and serve a small model with an index, with requests to try
# make test    set everything up, then lint, types, layers and all tests
# make lint    lint, types and layers alone
# make fuzz    options at their extremes and damaged files, thousands of each: none may crash, hang or answer otherwise
# make kills   kill the program at 50 random moments of every command that writes a folder, and machines of a cluster
# make golden  all cases of other programs' answers; make test compares a part of the slowest ones
# make soak    a server at saturation for half an hour, with faults: no growth, nothing stuck, nothing wrong
# make bench   the benchmarks, each against a named baseline in the same run
# make bench-retrieval   BM25 against other engines
# make bench-dense       dense and hybrid retrieval against BM25, brute force and the encoder itself
# make bench-scoring     the scoring engine against the plain loop
# make bench-generation  generation from ensembles against plain generation
# make bench-learning    signals and training against plain loops
# make bench-ensembles   ensembles of ten documents against the plain loop of ten passes
# make bench-answering   answers to questions with 16 demonstrations and ten passages against the plain loop of prompts
# make bench-serving     the server with many requests at once against one after another
# make bench-cluster     an index and an evaluation on a Ray cluster of one machine against the plain commands
# make bench-api         requests to models behind an API, certified tokens, reading ahead
# make docs    write docs/command-line.md from the program's own help, and docs/python-api.md from the docstrings
# make test-lowest   run the fast tests with the lowest versions of dependencies that pyproject.toml allows
# make clean   remove what make made

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
# more than cores: tests wait for servers and for processes that are killed
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MUTANTS ?= 10000
SEED ?= 0
# old releases warn of each other
OLD_WARNINGS := -W default::DeprecationWarning -W default::PendingDeprecationWarning -W default::FutureWarning

.PHONY: demo serve-demo test test-fast test-lowest lint kills fuzz golden soak bench bench-retrieval bench-dense bench-scoring bench-generation bench-ensembles bench-learning bench-answering bench-serving bench-cluster bench-api docs clean

demo: $(VENV)/installed
	$(BIN)/ralm demo

serve-demo: $(VENV)/installed-serve
	$(BIN)/ralm serve --demo

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --ignore tests/distributed
	$(BIN)/python -m pytest tests/distributed  # one cluster, which uses all processors

test-fast: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow"

test-lowest: $(LOWEST)/installed
	NUMBA_CACHE_DIR=$(CURDIR)/$(LOWEST)/numba $(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal -m "not slow" $(OLD_WARNINGS) \
		--deselect tests/cli/test_cli.py::test_the_page_of_the_documentation_is_the_programs_own_help

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

kills: $(VENV)/installed-dev
	RALM_KILLS=50 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/test_kills.py tests/recipes/test_killed_recipe.py tests/training/test_retriever.py tests/distributed

golden: $(VENV)/installed-dev
	RALM_GOLDEN=all $(BIN)/python -m pytest -n $(JOBS) --timeout 36000 tests/test_against_reference.py tests/answering/test_official_qa.py

soak: $(VENV)/installed-dev
	RALM_SOAK=1800 $(BIN)/python -m pytest --timeout 36000 tests/serving/test_soak.py

bench: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.index_memory
	$(BIN)/python -m benchmarks.index_curve
	$(BIN)/python -m benchmarks.corpus
	$(BIN)/python -m benchmarks.parts

bench-retrieval: $(VENV)/installed-dev
	$(PIP) install --requirement requirements/bench.txt
	if java -version 2>/dev/null; then $(PIP) install --no-deps pyserini pyjnius; fi  # Lucene; wants Java 21 in JAVA_HOME
	$(BIN)/python -m benchmarks.retrieval

bench-dense: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.dense

bench-scoring: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.linear_layers

bench-generation: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.generation

bench-learning: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.learning
	$(BIN)/python -m benchmarks.retriever_training

bench-ensembles: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.ensembles

bench-answering: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.answering

bench-serving: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.serving

bench-cluster: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.cluster

bench-api: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.api

fuzz: $(VENV)/installed-dev
	RALM_FUZZ=5000 $(BIN)/python -m pytest -n $(JOBS) --timeout 36000 tests/fuzz tests/serving/test_odd_requests.py \
		tests/serving/test_odd_chats.py
	$(BIN)/python -m tests.fuzz.damage --mutants $(MUTANTS) --seed $(SEED)

docs: $(VENV)/installed-dev
	$(BIN)/python -m tools.command_line_page > docs/command-line.md
	$(BIN)/python -m tools.python_api_page > docs/python-api.md

clean:
	rm -rf $(VENV) $(LOWEST) ralm-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/installed: pyproject.toml requirements/torch-cpu.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --constraint requirements/torch-cpu.txt --editable '.[lm]'
	touch $@

$(VENV)/installed-serve: $(VENV)/installed
	$(PIP) install --constraint requirements/torch-cpu.txt --editable '.[serve]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements/dev.txt
	$(PIP) install --constraint requirements/torch-cpu.txt --editable '.[all]' --requirement requirements/dev.txt
	touch $@

$(LOWEST)/installed: pyproject.toml requirements/lowest.txt requirements/torch-cpu.txt requirements/dev.txt
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip --disable-pip-version-check --quiet install --constraint requirements/torch-cpu.txt \
		--constraint requirements/lowest.txt --editable '.[all]' --requirement requirements/dev.txt
	touch $@
