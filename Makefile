# Everything runs in the virtual environment .venv, made on demand. Bare `make` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.stemroot-installed
BENCH_LAUNCHES ?= 500000

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help venv demo test test-unit test-statistics test-spark test-e2e dist zip lint format bench docs clean java

help: ## list the targets
	@echo "stemroot-spark: make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/\1|\2/p' $(firstword $(MAKEFILE_LIST)) \
		| while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done
	@echo "Needs Python 3.11 or 3.12, and Java 17 or later for all that runs Spark."

venv: $(INSTALLED) ## make .venv with the package and all tools (PYTHON=python3.12 to choose)

demo: java venv ## the whole way on a small fleet, or on your traces with TRACES=FOLDER
	@mkdir -p build
	@$(BIN)/python jobs/demo.py --folder build/demo $(if $(TRACES),--traces '$(TRACES)') 2>build/demo.log || { \
		code=$$?; tail -n 20 build/demo.log >&2; \
		echo "make demo: failed with exit code $$code; the whole log is build/demo.log, and make clean begins anew" >&2; \
		exit $$code; }

test: java test-unit test-statistics test-spark test-e2e ## all tests: unit, statistics, spark, e2e

test-unit: venv ## tests without Java, in seconds
	@$(BIN)/python -m pytest -n 2 tests/unit

test-statistics: venv ## stated bounds and intervals against simulation, without Java
	@$(BIN)/python -m pytest -n 2 tests/statistics

test-spark: java venv ## tests on two local Spark sessions beside each other
	@$(BIN)/python -m pytest -n 2 --dist loadfile tests/spark

test-e2e: java zip ## tests that submit the jobs to a standalone cluster
	@$(BIN)/python -m pytest tests/e2e

lint: venv ## ruff, mypy, and whether docs/tables.md is current
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(TABLES_PAGE) | diff -u docs/tables.md - || { echo "docs/tables.md is not current: run make docs" >&2; exit 1; }

format: venv ## let ruff rewrite the code in the project's format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

dist: venv ## dist/: the wheel, and stemroot_spark.zip for spark-submit --py-files
	@rm -rf dist build/lib build/bdist.*
	@mkdir -p build
	@# Entries of the wheel get a fixed time, so that the same commit gives the same bytes.
	@SOURCE_DATE_EPOCH=315532800 $(BIN)/python -m build --wheel >build/dist.log 2>&1 || { tail -n 20 build/dist.log >&2; exit 1; }
	@$(BIN)/python deploy/build_zip.py --out dist/stemroot_spark.zip --wheel dist/*.whl
	@ls dist/*.whl

zip: venv
	@$(BIN)/python deploy/build_zip.py --out dist/stemroot_spark.zip

bench: java venv ## how the time of each stage grows with the launches (BENCH_LAUNCHES=500000)
	@mkdir -p build
	@$(BIN)/python bench/pipeline.py --launches $(BENCH_LAUNCHES) --folder build/bench 2>build/bench.log || { \
		code=$$?; tail -n 20 build/bench.log >&2; \
		echo "make bench: failed with exit code $$code; the whole log is build/bench.log" >&2; exit $$code; }

docs: venv ## write docs/tables.md from schemas/*.sql
	@mkdir -p docs
	@$(TABLES_PAGE) >docs/tables.md.tmp && mv docs/tables.md.tmp docs/tables.md

clean: ## remove what the other targets wrote; .venv stays
	@rm -rf build dist *.egg-info spark-warehouse metastore_db derby.log .pytest_cache .mypy_cache .ruff_cache .hypothesis

TABLES_PAGE := $(BIN)/python -c 'from stemroot_spark.tables.ddl import markdown; print(markdown(), end="")'

# A missing or wrong tool ends make with one line that says what to install.
FIND_PYTHON = for p in $(PYTHON) $(if $(PYTHON),,python3.11 python3.12 python3); do \
	"$$p" -c 'import sys, ensurepip; raise SystemExit(not (3, 11) <= sys.version_info < (3, 13))' >/dev/null 2>&1 \
	&& { echo "$$p"; exit; }; done
NO_PYTHON = Python 3.11 or 3.12 with venv was not found$(if $(PYTHON), as $(PYTHON)); install it (Debian, Ubuntu: \
apt-get install python3.11 python3.11-venv; macOS: brew install python@3.11), or name it with make PYTHON=/path/to/python
JAVA_VERSION = $(if $(JAVA_HOME),"$(JAVA_HOME)/bin/java",java) -version 2>&1 | sed -n -e 's/version "1[.]/version "/' -e 's/.*version "\([0-9]*\).*/\1/p'
NO_JAVA = Java 17 or later is needed, found $(or $(found),none); install a JDK (Debian, Ubuntu: apt-get install \
openjdk-17-jre-headless; macOS: brew install openjdk@17) and put it on PATH, or set JAVA_HOME to it

java:
	@$(eval found := $(shell $(JAVA_VERSION)))$(if $(shell [ "0$(found)" -ge 17 ] && echo yes),:,$(error $(NO_JAVA)))

# An environment of another Python, or a broken one, is made anew.
$(INSTALLED): setup.cfg pyproject.toml
	@$(eval python := $(shell $(FIND_PYTHON)))$(if $(python),:,$(error $(NO_PYTHON)))
	@mkdir -p build
	@$(BIN)/python -c 'import sys, pip; raise SystemExit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null \
		|| { echo "making $(VENV) with $(python)"; $(python) -m venv --clear $(VENV); }
	@echo "installing the package and its tools; details in build/install.log"
	@$(BIN)/python -m pip install --disable-pip-version-check --no-input -e '.[dev]' >build/install.log 2>&1 </dev/null || { \
		tail -n 20 build/install.log >&2; echo "installing failed; the whole log is build/install.log" >&2; exit 1; }
	@touch $@
