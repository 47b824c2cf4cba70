// A tile of 16-bit numbers in shared memory, rows of Cols, swizzled in chunks of 16 bytes so that ldmatrix and 16-byte
// stores meet no bank twice.
//
// Eight rows at one chunk column must fall on the eight 16-byte columns of the banks. Let a row have odd * 2^b chunks.
// Then 2^(3-b) neighbouring rows differ in their chunk address modulo 8 by multiples of 2^b of their own, and the row
// number's next b bits, XORed onto the chunk's low b bits, tell the rest apart: chunk ^ ((row >> (3 - b)) & (2^b - 1)).
// For rows of 128 bytes and their multiples that is the familiar chunk ^ (row & 7).
//
// A PanelTile holds panels of 64 columns, one after another, each swizzled as a SharedTile of 64: what a tensor copy
// (TMA) writes with its 128-byte swizzle. Its address must then be a multiple of 1024.
#pragma once

#include "cuda/ptx/memory.cuh"

namespace flashdelta::tile {

constexpr int trailing_zeros(int x, int limit) {
  int n = 0;
  while (n < limit && (x >> n & 1) == 0) n++;
  return n;
}

template <int Rows, int Cols>
struct alignas(128) SharedTile {
  static_assert(Rows % 16 == 0 && Cols % 16 == 0, "fragments are 16 by 16");
  static constexpr int rows = Rows, cols = Cols;
  static constexpr int chunks = Cols / 8;
  static constexpr int neighbour_bits = 5;  // 2^these chunks of a row, or all, are one piece of memory
  static constexpr int pitch = Cols * 2;    // bytes
  static constexpr int swizzle_bits = trailing_zeros(chunks, 3);
  static constexpr int swizzle_mask = (1 << swizzle_bits) - 1;

  uint16_t data[Rows * Cols];

  __device__ __forceinline__ uint32_t address() const { return ptx::shared_address(data); }

  // Bytes from the tile's start to a chunk of 8 numbers.
  __device__ static __forceinline__ uint32_t offset(int row, int chunk) {
    return row * pitch + ((chunk ^ ((row >> (3 - swizzle_bits)) & swizzle_mask)) << 4);
  }

  // What a chunk's bits above the swizzled ones add to an address.
  __device__ static constexpr uint32_t beyond_swizzle(int chunk) { return (chunk & ~swizzle_mask) << 4; }
};

template <int Rows, int Cols>
struct alignas(128) PanelTile {
  static_assert(Rows % 16 == 0 && Cols % 64 == 0, "panels have 64 columns");
  static constexpr int rows = Rows, cols = Cols;
  static constexpr int panels = Cols / 64;
  static constexpr int chunks = Cols / 8;
  static constexpr int neighbour_bits = 3;
  static constexpr int pitch = 128;  // bytes
  static constexpr int panel_bytes = Rows * pitch;
  static constexpr int swizzle_bits = 3, swizzle_mask = 7;

  uint16_t data[Rows * Cols];

  __device__ __forceinline__ uint32_t address() const { return ptx::shared_address(data); }

  __device__ static __forceinline__ uint32_t offset(int row, int chunk) {
    return row * pitch + (((chunk & 7) ^ (row & 7)) << 4) + beyond_swizzle(chunk);
  }
  __device__ static constexpr uint32_t beyond_swizzle(int chunk) { return chunk / 8 * panel_bytes; }
};

}  // namespace flashdelta::tile
