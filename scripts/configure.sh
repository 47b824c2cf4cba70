#!/usr/bin/env bash
# Configures a preset, quietly when all is well.
set -euo pipefail
preset=$1
launcher=()
if command -v ccache >/dev/null; then
  launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
fi
if ! output=$(cmake --preset "$preset" "${launcher[@]}" 2>&1); then
  printf '%s\n' "$output" >&2
  exit 1
fi
