// Configurations of the gated delta forward kernels, and what follows from them. Plain C++ for host and device.
#pragma once

#include "cuda/element.hpp"
#include "plan/shared_memory.hpp"

namespace flashdelta {

// Tokens a chunk. Fixed: with 64, 99 KiB leave room for 32 value columns at head size 128, too few warps.
inline constexpr int gated_delta_chunk = 32;

// What reading and writing a sequence's states takes, in chunks of a wide block (ranges.cuh). Even.
inline constexpr int gated_delta_sequence_chunks = 4;

// Chunk preparation, a block a chunk and key head.
struct GatedDeltaPrepareConfig {
  Element element;
  int dim_k;  // columns of the tiles; smaller heads are padded with zeros
  int warps;  // share the products, then take value heads in turn

  constexpr int threads() const { return warps * 32; }
  constexpr int shared_bytes() const {
    return static_cast<int>(gated_delta_prepare_shared_bytes({gated_delta_chunk, dim_k, warps, 2}).total());
  }
  constexpr bool valid() const { return dim_k % 16 == 0 && warps >= 1; }
  bool operator==(const GatedDeltaPrepareConfig&) const = default;
};

// The same by teams of such blocks' warps, which run beside the sequential kernel (ahead.cuh). A block has an SM of its
// own.
struct GatedDeltaAheadConfig {
  GatedDeltaPrepareConfig prepare;
  int teams;

  constexpr int threads() const { return teams * prepare.threads(); }
  constexpr int shared_bytes() const { return teams * prepare.shared_bytes(); }
  bool operator==(const GatedDeltaAheadConfig&) const = default;
};

// The sequential kernel, a block a sequence, value head and block_v value columns.
struct GatedDeltaForwardConfig {
  Element element;
  int dim_k;             // columns of the tiles of K and Q
  int block_v;           // value columns a block
  int warps;             // that multiply: each owns block_v / warps value columns, a multiple of 16. One more copies.
  int stages;            // chunks in shared memory, 2 or more
  bool keep_addresses;   // registers to spare hold the addresses that the compiler would compute anew in every chunk
  bool summary = false;  // makes what a part does to the state before it, and no output (summary.cuh)
  int room_v = 0;        // value columns that a stage has room for, where wider work takes turns with this

  constexpr int threads() const { return (warps + 1) * 32; }
  // The state may be kept undecayed for a while: its operands have fp32's range, and there are registers to spare.
  constexpr bool gathers() const { return element == Element::bf16 && (keep_addresses || summary || wide()); }
  // Two blocks of 16 columns a warp, which leaves registers for little else: no checkpoints, 16-bit output.
  constexpr bool wide() const { return !summary && warp_columns() == 32; }
  constexpr int warp_columns() const { return block_v / warps; }
  // What a block does comes in tasks (wide.cuh), neither with checkpoints nor with fp32 output.
  constexpr bool has_tasks() const { return wide() || room_v > 0; }
  constexpr int stage_v() const { return room_v > block_v ? room_v : block_v; }
  constexpr int shared_bytes() const {
    return static_cast<int>(gated_delta_shared_bytes({gated_delta_chunk, stage_v(), dim_k, stages, 2}).total());
  }
  constexpr bool valid() const { return dim_k % 16 == 0 && block_v % (16 * warps) == 0 && stages >= 2; }
  bool operator==(const GatedDeltaForwardConfig&) const = default;
};

// Work of both widths in one launch. narrow is the row of narrow blocks that goes with it.
struct GatedDeltaWideConfig {
  GatedDeltaForwardConfig wide, narrow;

  // In the stages of the wide one, so that a block may do both, one after the other.
  constexpr GatedDeltaForwardConfig narrow_task() const {
    GatedDeltaForwardConfig config = narrow;
    config.room_v = wide.block_v;
    return config;
  }

  constexpr int threads() const { return wide.threads(); }
  constexpr int shared_bytes() const { return wide.shared_bytes(); }
  bool operator==(const GatedDeltaWideConfig&) const = default;
};

// First parts, and summaries of the others but the last.
struct GatedDeltaSummaryConfig {
  GatedDeltaForwardConfig part, first;

  constexpr int threads() const { return part.threads(); }
  constexpr int shared_bytes() const {
    return part.shared_bytes() > first.shared_bytes() ? part.shared_bytes() : first.shared_bytes();
  }
  bool operator==(const GatedDeltaSummaryConfig&) const = default;
};

// Composes the states before parts, a block a sequence, value head and `columns` value columns.
struct GatedDeltaScanConfig {
  int dim_k;  // as in the rows whose states these are

  static constexpr int columns = 8, groups = 2;  // groups of dim_k threads share the keys of a sum
  constexpr int threads() const { return groups * dim_k; }
  constexpr int shared_bytes() const { return 2 * dim_k * columns * 4; }
  bool operator==(const GatedDeltaScanConfig&) const = default;
};

}  // namespace flashdelta
