# The front door. Each target does the set-up that it needs; `make help` lists them.
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
.DEFAULT_GOAL := help
.PHONY: audit wheel python-test setup-nvcc help setup build build-all test demo format format-check lint install clean asan-test

help: ## Show the targets.
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install the Debian packages that are missing.
	@scripts/setup.sh

setup-nvcc: ## Fetch NVIDIA's compiler, 13.0, from PyPI into .nvcc/, where the build finds it.
	@scripts/setup_nvcc.sh

build: setup ## Build the library and the command line in build/.
	@scripts/configure.sh release
	@cmake --build --preset release --parallel $(JOBS) --target flashdelta flashdelta_cli

build-all: build ## Build the tests and benchmarks too.
	@cmake --build --preset release --parallel $(JOBS)

test: build-all ## Build and run every test that this machine can run.
	@scripts/skipped.sh build
	@ctest --preset release --parallel $(JOBS)

demo: build ## Run both operations on real input and show that the answer is right.
	@scripts/demo.sh build/bin/flashdelta

format: setup ## Rewrite the sources in the project's style.
	@scripts/format.sh --write

format-check: setup ## Fail where a source is not in the project's style.
	@scripts/format.sh

lint: setup ## Run clang-tidy and shellcheck.
	@scripts/lint.sh

asan-test: setup ## Build with address and undefined sanitizers and run the tests.
	@scripts/configure.sh asan
	@cmake --build --preset asan --parallel $(JOBS)
	@ctest --preset asan --parallel $(JOBS)

audit: setup ## Compile every kernel for sm_120 and hold registers, spills and shared memory to the plan.
	@mkdir -p build
	@$(CXX) -std=c++20 -Isrc src/cuda/generate.cpp -o build/generate
	@scripts/audit_kernels.py build/generate

wheel: setup ## Build the Python wheel in dist/ (PYTHON=python3.12 for another Python).
	@scripts/configure.sh release
	@scripts/wheel.sh

python-test: setup ## Install the wheel into a clean environment and run the Python tests.
	@scripts/configure.sh release
	@scripts/python_tests.sh

install: build ## Install the library, header, command line and CMake package under PREFIX (/usr/local).
	@cmake --install build --prefix $(PREFIX)

clean: ## Remove what the builds made.
	@rm -rf dist build build-debug build-asan build-lint build-cuda build-cuda-release
