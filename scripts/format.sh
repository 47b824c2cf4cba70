#!/usr/bin/env bash
# Checks the style of every C, C++ and CUDA source (clang-format 14, so that everybody's answer is the same); --write
# rewrites them.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=(--dry-run --Werror)
[ "${1:-}" != --write ] || mode=(-i)
git ls-files -z '*.h' '*.hpp' '*.cpp' '*.c' '*.cu' '*.cuh' | xargs -0 clang-format-14 "${mode[@]}"
