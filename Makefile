# `make demo` and `make test` are all a newcomer needs; each installs what it needs first.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help demo test test-slow mutants kills fuzz setup lint format docs lock backbone clean

help:            ## list the targets
	@grep -hE '^[a-z-]+: .*##|^[a-z-]+:  *##' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(STAMP)   ## pFedSeq, Local and FedAvg on ten clients' digits, in under 2 minutes
	$(BIN)/pfedseq run demo

test: $(STAMP)   ## the default tests
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-slow: $(STAMP) ## the tests that take minutes
	$(BIN)/python -m pytest -q -m slow

kills: $(STAMP)  ## kill runs of every method 1,000 times and compare the results (about 1 h)
	$(BIN)/python -m tests.faults.kills --kills 1000

fuzz: $(STAMP)   ## feed 100,000 broken files to every parser
	$(BIN)/python -m tests.faults.fuzz --inputs 100000

mutants: $(STAMP) ## mutation testing: share of small code changes that the tests detect; hours, or SAMPLE=400
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,mutants]'
	$(BIN)/python -m tests.mutants $(if $(SAMPLE),--sample $(SAMPLE))

setup: $(STAMP)  ## install into .venv

lint: $(STAMP)   ## ruff, mypy and the rule of who imports whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## let ruff rewrite the files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)   ## build the documentation into docs/_build/html; any warning is an error
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev,docs]'
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html docs docs/_build/html
	@echo docs/_build/html/index.html

lock: $(STAMP)   ## pin every dependency of every platform with its hashes (requirements.lock)
	$(BIN)/pip install --quiet --constraint constraints.txt uv
	$(BIN)/uv pip compile --no-config --universal --python-version 3.11.7 --generate-hashes --no-annotate \
		--no-header --all-extras --constraint constraints.txt --output-file requirements.lock --quiet pyproject.toml

backbone: $(STAMP) ## train the demo's backbone again (docs/reference/backbones.md)
	$(BIN)/python -m pretraining --out src/pfedseq/assets/demo_vit

clean:           ## remove everything that was built
	rm -rf .venv build docs/_build docs/reference/generated src/*.egg-info .pytest_cache .mypy_cache .ruff_cache

$(STAMP): pyproject.toml setup.py constraints.txt $(wildcard src/pfedseq/learners/mamba_kernel/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "pfedseq needs Python 3.11 or newer; choose one with make PYTHON=...")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)
