# Each target does all of its own set-up: a virtual environment in .venv, then the job.
PYTHON ?= python3

.PHONY: demo test lint types clean

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,tensorboard]'
	touch $@

demo: .venv/installed  ## train three modalities on one trunk, and compare them
	.venv/bin/unifier run experiments/three_modalities.py

test: .venv/installed  ## every promise, on the processor, in minutes
	.venv/bin/python -m pytest --quiet --numprocesses 2

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/installed
	.venv/bin/pyright

clean:
	rm -rf .venv build *.egg-info
