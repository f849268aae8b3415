# Two commands do everything: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -q --disable-pip-version-check -c constraints.txt

.PHONY: demo test check format real torch bench clean

$(VENV)/base: pyproject.toml setup.py converter/numerics/_sums.c constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[service]'
	touch $@

$(VENV)/models: $(VENV)/base tests/real/requirements.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -r tests/real/requirements.txt
	touch $@

$(VENV)/demo: $(VENV)/base tests/real/requirements.txt
	$(BIN)/pip install -q --disable-pip-version-check --no-deps $$(grep '^magika==' tests/real/requirements.txt)
	touch $@

$(VENV)/dev: $(VENV)/base
	$(PIP) -e '.[dev]'
	touch $@

# torch==VERSION, not plain torch: the pin decides which build is taken.
$(VENV)/torch: $(VENV)/dev tests/torch/requirements.txt
	$(PIP) $$(grep '^torch==' constraints.txt)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -r tests/torch/requirements.txt
	touch $@

demo: $(VENV)/demo
	$(BIN)/python -m benchmarks.demo

test: check $(VENV)/models $(VENV)/torch
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

check: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

real: $(VENV)/dev $(VENV)/models
	$(BIN)/python -m pytest -q -m real tests/real

torch: $(VENV)/torch
	$(BIN)/python -m pytest -q -n 2 --dist loadfile tests/torch

# The peers, each in an environment of its own; then every tool on the same files (about half an hour).
.venv-ort/done:
	$(PYTHON) -m venv .venv-ort
	.venv-ort/bin/pip install -q --disable-pip-version-check onnxruntime==1.32.0 onnx==1.23.2 sympy packaging
	touch $@

.venv-occ/done:
	$(PYTHON) -m venv .venv-occ
	.venv-occ/bin/pip install -q --disable-pip-version-check onnxconverter-common==1.16.0 onnx==1.23.2
	touch $@

.venv-modelopt/done:
	$(PYTHON) -m venv .venv-modelopt
	.venv-modelopt/bin/pip install -q --disable-pip-version-check torch==2.13.0
	.venv-modelopt/bin/pip install -q --disable-pip-version-check 'nvidia-modelopt[onnx]==0.47.0'
	touch $@

bench: $(VENV)/dev $(VENV)/models .venv-ort/done .venv-occ/done .venv-modelopt/done
	$(BIN)/python -m benchmarks.bench

clean:
	rm -rf $(VENV) .venv-ort .venv-occ .venv-modelopt build *.egg-info
