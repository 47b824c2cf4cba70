// attention_forward on a device: which kernel row, its parameters, its launch. The same code for CUDA and the emulator.
#pragma once

#include "core/problem.hpp"
#include "cuda/attention/forward_params.h"
#include "cuda/attention/rows.hpp"
#include "device/device.hpp"
#include "plan/kernel_rows.hpp"

namespace flashdelta {

// NOT_SUPPORTED by name where no kernel row does what the call asks, with what would.
Status attention_forward_supported(const AttentionProblem& problem);

// One row of either table. splits: how many blocks share the keys of a query tile; above 1 a second kernel puts their
// parts together.
struct ForwardChoice {
  const ForwardRow* row = nullptr;
  const DecodeRow* decode = nullptr;
  int splits = 1;
  TailSplit tail;  // of a row of the first table without splits
};

// What a problem gets under an architecture's limits, on a card of sm_count multiprocessors.
Status choose_forward(const AttentionProblem& problem, const ArchProfile& arch, int sm_count, ForwardChoice* choice);

Status attention_forward_workspace_on(const AttentionProblem& problem, const ArchProfile& arch, int sm_count,
                                      size_t* bytes);

// Makes the kernels of that call ready, so that it may be captured in a graph.
Status prepare_attention_forward(Device& device, const ArchProfile& arch, const AttentionProblem& problem);

// (sequence, key head) pairs whose query tiles run side by side: enough to share their keys through the L2 cache, few
// enough that those keys stay in it. Where tiles are of unequal length, and the longest of those heads start first,
// more are packed better. All bundles are of about as many pairs: a last one of a few leaves long tiles to the end,
// when most SMs have nothing else.
constexpr int64_t heads_in_flight(bool longest_first, int64_t pairs) {
  const int64_t most = longest_first ? 32 : 16, bundles = (pairs + most - 1) / most;
  return bundles > 0 ? (pairs + bundles - 1) / bundles : 0;
}

// Of q_tiles query tiles of each pair those that start after the others of all pairs, where the longest start first:
// the more short ones there are in the end, the more evenly the SMs finish, and the few keys that they see stay in the
// L2.
constexpr int64_t late_tiles(bool longest_first, int64_t q_tiles) { return longest_first ? q_tiles / 8 : 0; }

// What the host has to know of a row of either table.
struct ForwardTile {
  int block_q, block_kv, head_dim, head_dim_v, threads, shared_bytes, value_parts;

  explicit ForwardTile(const ForwardRow& row);
  explicit ForwardTile(const DecodeRow& row);
};

AttentionForwardParams forward_params(const AttentionProblem& problem, const ForwardTile& tile);

// arch: whose limits are planned under; where that is not the device's own, residency is held to it too.
Status attention_forward_on(Device& device, const ArchProfile& arch, const AttentionProblem& problem, void* workspace,
                            void* stream);

// Dynamic shared memory to ask for, so that no more blocks of `bytes` and `threads` share an SM of the device than
// would share one of `arch`.
uint32_t held_shared_bytes(const DeviceInfo& device, const ArchProfile& arch, int64_t bytes, int64_t threads);

}  // namespace flashdelta
