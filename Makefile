# Each target does all of its own set-up: a virtual environment in .venv, then the job.
PYTHON ?= python3
PYTEST = .venv/bin/python -m pytest --quiet --numprocesses 2 --dist worksteal
CHAOS_MINUTES ?= 60

.PHONY: demo test test-fast test-extras lint types docs bench chaos constraints clean

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check uv
	@# Trackio forbids pillow 13, but its tests pass with it, so the bound is overridden.
	echo pillow | .venv/bin/uv pip install --system-certs --compile-bytecode --python .venv/bin/python \
		--constraints constraints.txt --overrides - --editable '.[dev,tensorboard,bench,serve,parquet,onnx,hf,trackers,ray,docs]'
	touch $@

demo: .venv/installed  ## compare three modalities on one trunk
	.venv/bin/unifier run three_modalities

test: .venv/installed  ## all tests but those of a browser and of extras, on the CPU, in minutes
	$(PYTEST) -m 'not browser and not extras'

test-fast: .venv/installed  ## the unit tests, in under a minute
	$(PYTEST) -m 'not slow and not browser and not extras'

test-extras: .venv/installed  ## the server, and the pages in a browser; root installs chromium if it is missing
	@if ! command -v chromium > /dev/null; then \
		if [ "$$(id -u)" != 0 ]; then echo 'No chromium on the PATH: run "apt-get install chromium" as root.' >&2; exit 1; fi; \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; \
	fi
	$(PYTEST) --dist loadfile -m 'browser or extras'  # The tests of a file share servers and processes.

lint: .venv/installed  ## style, and the first words of docstrings
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python tests/prose.py

types: .venv/installed
	.venv/bin/pyright

docs: .venv/installed  ## the documentation site in build/docs; executes all lessons, in minutes
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

bench: .venv/installed  ## speed against other libraries; an hour on two cores
	.venv/bin/python -m benchmarks
	.venv/bin/python -m benchmarks.products
	.venv/bin/python -m benchmarks.attention
	.venv/bin/python -m benchmarks.scaling
	.venv/bin/python -m benchmarks.lengths
	.venv/bin/python -m benchmarks.overheads
	.venv/bin/python -m benchmarks.serving
	.venv/bin/python -m benchmarks.parallel_text

chaos: .venv/installed  ## damaged files and killed runs; CHAOS_MINUTES=5 for a short run
	.venv/bin/python -m benchmarks.chaos --minutes $(CHAOS_MINUTES)

constraints: .venv/installed  ## write the installed versions into constraints.txt, once the tests pass
	.venv/bin/uv pip freeze --exclude-editable --python .venv/bin/python > constraints.txt

clean:
	rm -rf .venv build *.egg-info
