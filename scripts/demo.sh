#!/usr/bin/env bash
# Both operations on activations of real language models (examples/data/README.md says where they come from): the plan
# for an SM120 card, then a run on the best backend of this machine, compared with the float64 oracle.
# Usage: scripts/demo.sh FLASHDELTA
set -euo pipefail
flashdelta=$1
data=$(dirname "$0")/../examples/data

say() { printf '\n== %s\n' "$*"; }
run() {
  printf '$ flashdelta %s\n' "${*/#*examples\/data/examples/data}"
  "$flashdelta" "$@"
}

say "How softmax attention (head size 64) would be cut for an SM120 card"
run plan attention-forward --arch sm120 --dtype bf16 --head-dim 64 --seqlen 512
say "Softmax attention of SmolLM2-135M-Instruct, checked against float64"
for file in "$data"/attention_*.safetensors; do
  run check attention-forward "$file" --causal
done
say "How the gated delta rule would be cut for an SM120 card"
run plan gated-delta-forward --arch sm120 --dtype bf16 --head-dim 128 --seqlen 512
say "Gated delta rule of a small Qwen3-Next model, checked against float64"
for file in "$data"/gated_delta_*.safetensors; do
  run check gated-delta-forward "$file" --l2norm
done
say "Both operations agree with the oracle."
