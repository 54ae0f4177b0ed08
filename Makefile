# Each target does all of its own set-up: a virtual environment in .venv, then the job.
PYTHON ?= python3

.PHONY: demo test lint types bench clean

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
	.venv/bin/uv pip install --system-certs --python .venv/bin/python --editable '.[dev,tensorboard,bench]'
	touch $@

demo: .venv/installed  ## compare three modalities: solo, joint and transfer
	.venv/bin/unifier run experiments/three_modalities.py

test: .venv/installed  ## the test suite, on the CPU, in minutes
	.venv/bin/python -m pytest --quiet --numprocesses 2 --dist worksteal

lint: .venv/installed
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: .venv/installed
	.venv/bin/pyright

bench: .venv/installed  ## speed against other libraries; an hour on two cores
	.venv/bin/python -m benchmarks
	.venv/bin/python -m benchmarks.products
	.venv/bin/python -m benchmarks.attention
	.venv/bin/python -m benchmarks.scaling
	.venv/bin/python -m benchmarks.alone
	.venv/bin/python -m benchmarks.parallel_text

clean:
	rm -rf .venv build *.egg-info
