#!/usr/bin/env bash
# Says which tests this machine could not run, and why, after ctest. Usage: scripts/skipped.sh BUILD_FOLDER
set -euo pipefail
count() { ctest --test-dir "$1" -N -L "^$2\$" | sed -n 's/^Total Tests: //p'; }
for label in cpu emulator gpu sm120; do
  n=$(count "$1" "$label")
  if [ "$n" -gt 0 ]; then
    echo "tests labelled $label: $n programs"
  else
    echo "tests labelled $label: none in this build"
  fi
done
