#!/usr/bin/env bash
# Installs the Debian packages that the build, the tests and the checks need and that are missing. Says nothing when
# there is nothing to do. As root, or through sudo where that asks no password; else it prints the line to run and stops.
set -euo pipefail

packages=(
  g++ cmake make ninja-build
  libhwy-dev libfmt-dev libcli11-dev nlohmann-json3-dev libdlpack-dev
  libgtest-dev librapidcheck-dev
  python3-venv python3-dev
  clang-format-14 clang-tidy-14 libomp-14-dev shellcheck
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo)
else
  echo "flashdelta needs Debian packages that are missing. Run this, then the same command again:" >&2
  echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi

echo "installing ${#missing[@]} Debian packages: ${missing[*]}" >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq &&
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
  >"$log" 2>&1; then
  cat "$log" >&2
  echo "the packages could not be installed; apt's words are above" >&2
  exit 1
fi
