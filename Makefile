# Every target installs what it needs into .venv on first use.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
RUN ?= out/default
SETUP := .venv/.installed
# One thread each: bits do not depend on the number of cores, and threads do not spin on a busy machine.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup check test types lint train analyze figures report browser-test bench soak clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(SETUP)  ## make .venv with everything pinned in constraints.txt

$(SETUP): setup.cfg constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	$(MAKE) --no-print-directory .types/grokscope
	@# Links found on the path win over a clone named grokscope in the current folder; an import hook does not.
	echo '$(CURDIR)/.types' > $$($(BIN)/python -c 'import site; print(site.getsitepackages()[0])')/grokscope.pth
	@touch $@

check: lint types  ## lint and types

lint: $(SETUP)  ## ruff: style, imports, docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(SETUP) .types/grokscope  ## mypy --strict
	$(BIN)/mypy -p grokscope

.types/grokscope:
	mkdir -p .types/grokscope
	for d in geometry runs analysis; do ln -sfn ../../$$d .types/grokscope/$$d; done
	ln -sfn ../../api/__init__.py .types/grokscope/__init__.py

test: $(SETUP)  ## the whole test suite
	$(BIN)/python -m pytest -m "not soak"

train: $(SETUP)  ## train the default run (RUN=out/default)
	$(BIN)/grokscope train --out $(RUN)

analyze: $(SETUP)  ## run every analysis on RUN
	$(BIN)/grokscope analyze all $(RUN)

figures: $(SETUP)  ## draw every figure of RUN into RUN/figures
	$(BIN)/grokscope figures $(RUN) --out $(RUN)/figures

report: $(SETUP)  ## the story of RUN on one page, RUN/report.html
	$(BIN)/grokscope report $(RUN) --out $(RUN)/report.html

browser-test: $(SETUP)  ## the page in a real browser (installs Debian's chromium, as root)
	command -v chromium >/dev/null || (apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium)
	$(BIN)/python -m pytest tests/test_browser.py

bench: $(SETUP)  ## ratios against peers, written to bench.json (ROWS=name for some)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python -m tests.bench $(ROWS)

soak: $(SETUP)  ## the long checks
	$(BIN)/pip install --quiet -c constraints.txt -e '.[notebook]'
	$(BIN)/python -m pytest -m soak

clean:  ## remove .venv and everything built
	rm -rf .venv .types build *.egg-info .mypy_cache .ruff_cache .pytest_cache
