# Every target sets up what it needs: Python 3.11 or later with pip is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY4 := .venv-v4/.ready

.PHONY: demo test test-browser sweep check format bench catalog conformance fixtures readme docs clean

demo: $(READY) ## build two real models, one healthy and one broken, and audit both
	$(BIN)/python fixtures/demo.py demo
	-$(BIN)/tieaudit demo/healthy
	@echo
	-$(BIN)/tieaudit demo/broken
	-@$(BIN)/tieaudit demo/broken --fail-on never --format html:demo/broken.html
	@echo
	@echo "The same as a page, for a browser: demo/broken.html"
	@echo "The models are in demo/. Try: $(BIN)/tieaudit demo/broken --format json --fail-on warning"

test: $(READY) ## the whole suite
	$(BIN)/python -m pytest -n 2 -q

test-browser: $(READY) ## the HTML page in a real Chromium, which Debian's apt installs if it is missing
	@for name in $${CHROMIUM:-chromium} chromium-browser google-chrome; do command -v "$$name" >/dev/null && exit 0; done; \
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else echo "These tests need Chromium: install it, or name the program in CHROMIUM." >&2; exit 1; fi
	$(BIN)/python -m pytest -q -m browser tests/browser

sweep: $(READY) ## the slow tests: every architecture, under all flags, in both formats
	$(BIN)/python -m pytest -n 2 -q -m slow

check: $(READY) ## style, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY)
	$(BIN)/ruff check --fix-only -q .
	$(BIN)/ruff format -q .

bench: $(READY) ## cost of whole processes, as ratios in one run
	$(BIN)/python tests/bench.py

conformance: $(READY) ## every architecture of the installed transformers
	$(BIN)/python tests/conformance.py

catalog: $(READY) $(READY4) ## observe every architecture again, under transformers 5 and 4
	$(BIN)/python -m tieaudit.catalog.generate observe --out .venv/v5.json
	PYTHONPATH=src .venv-v4/bin/python -m tieaudit.catalog.generate observe --configs .venv/v5.json --out .venv-v4/v4.json
	$(BIN)/python -m tieaudit.catalog.generate merge .venv/v5.json .venv-v4/v4.json

fixtures: $(READY) ## rebuild the checkpoints per rule
	$(BIN)/python fixtures/make.py

readme: $(READY) ## rebuild the generated parts of README.md
	$(BIN)/python tests/readme.py --write

docs: $(READY) ## rebuild the pages of the rules
	$(BIN)/python tests/rule_pages.py --write

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

$(READY4): Makefile
	$(PYTHON) -m venv .venv-v4
	.venv-v4/bin/python -m pip install -q --disable-pip-version-check torch==2.13.0 transformers==4.57.6 sentencepiece protobuf numpy
	touch $(READY4)

clean:
	rm -rf $(VENV) .venv-v4 demo bench
