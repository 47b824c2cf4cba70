#!/usr/bin/env bash
# Installs the build into a folder, builds the examples against the installed package as a user would, and runs them.
# Usage: tests/installed_package.sh SOURCE_FOLDER BUILD_FOLDER [compiler flags]
set -euo pipefail
source=$1 build=$2 flags=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >/dev/null
cmake -S "$source/examples" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_FLAGS="$flags" \
  -DCMAKE_CXX_FLAGS="$flags" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/attention"
"$work/build/gated_delta"
"$work/prefix/bin/flashdelta" --version
# The library exports its C ABI and nothing else.
library=$(find "$work/prefix" -name 'libflashdelta.so' | head -n 1)
others=$(nm -D --defined-only "$library" | awk '$2 != "A" && $3 !~ /^flashdelta_/ {print $3}')
if [ -n "$others" ]; then
  echo "exported and not flashdelta_*: $others" >&2
  exit 1
fi
