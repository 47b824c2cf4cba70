#!/usr/bin/env bash
# Fetches NVIDIA's compiler, pinned to CUDA 13.0, from PyPI into .nvcc/ of the project, where CMake finds it. Says
# nothing when it is there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/.nvcc
packages=(
  nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88
  nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85
)

if [ -x "$root/bin/nvcc" ] && "$root/bin/nvcc" --version | grep -q 'release 13\.0'; then exit 0; fi
python=$(command -v python3) || { echo "setup-nvcc: python3 with pip is needed" >&2; exit 1; }
if ! "$python" -m pip --version >/dev/null 2>&1; then
  echo "setup-nvcc: python3 has no pip; on Debian: apt-get install python3-pip" >&2
  exit 1
fi

staging=$(mktemp -d "$PWD/.nvcc.XXXXXX")
trap 'rm -rf "$staging"' EXIT
echo "fetching nvcc 13.0 from PyPI (100 MB)" >&2
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$staging/wheels" \
  "${packages[@]}" >&2
for wheel in "$staging"/wheels/*.whl; do "$python" -m zipfile -e "$wheel" "$staging/files"; done
# A zip file that python unpacks loses its mode bits.
toolkit=$staging/files/nvidia/cu13
chmod +x "$toolkit"/bin/* "$toolkit"/nvvm/bin/*
rm -rf "$root"
mv "$toolkit" "$root"
"$root/bin/nvcc" --version | tail -n 2 | head -n 1 >&2
