#!/usr/bin/env bash
# clang-tidy over the library and the command line (checks in .clang-tidy), shellcheck over the scripts.
set -euo pipefail
cd "$(dirname "$0")/.."
# A configuration of its own, which knows every file.
build="build-lint"
cmake --preset release -B "$build" -DFLASHDELTA_UNITY=OFF >/dev/null
git ls-files -z '*.sh' '.ci/run' | xargs -0 shellcheck
git ls-files -z 'src/*.cpp' 'cli/*.cpp' | xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 --quiet -p "$build" --extra-arg=-Wno-unknown-warning-option 2>&1 |
  sed '/warnings\{0,1\} generated\.$/d'
echo "lint: clean"
