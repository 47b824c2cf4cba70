// Work in even shares: all chunks of a value head of each key head, sequence after sequence and key head after key
// head, in p.ranges ranges of as many numbers each, a block a range, value head of the group and value block. So a card
// is busy to the end whatever the lengths, and a block has the end of one sequence, whole ones, the beginning of
// another. A sequence has a number a chunk, and gated_delta_sequence_chunks for its states, half of them before its
// chunks.
//
// A cut inside a sequence is moved to its nearest end where fewer than p.least_piece chunks would be left on a side.
// Else what comes after it starts early (segments.cuh). Where gates do not allow that the cut is none, and what lies
// between the cuts before and after it goes to the two blocks with most of it, half of the columns each, which takes
// 1.6 times less than all columns; or to one block, where that ends sooner. Every block decides this from the same
// numbers, so all agree.
#pragma once

#include "cuda/gated_delta/segments.cuh"

namespace flashdelta::gated_delta {

// What a block does at a time: a range of a sequence's chunks, a value head and a value block, wide or narrow.
struct Work {
  Sequence sequence;
  ChunkRange range;
  int n, head, value_block;
  bool narrow;
};

// A block's way along its range. By the whole warp. In 32 bits and without a division that can be spared: a block's
// first step waits for each instruction to come.
class RangeWalk {
 public:
  __device__ __forceinline__ RangeWalk(const GatedDeltaForwardParams& p, int block, int lane)
      : p_(p),
        lane_(lane),
        value_block_(block % p.wide_value_blocks),
        head_of_group_(block / p.wide_value_blocks % p.group),
        index_(block / p.wide_value_blocks / p.group),
        line_(chunk_slots(p) + p.sequences * sequence_chunks),
        head_k_(p.heads_k),
        n_(0) {
    if (p.ranges == 0) return;
    const int all = line_ * p.heads_k;
    length_ = all / p.ranges, longer_ = all - length_ * p.ranges;
    const int begin = cut(index_);
    head_k_ = begin / line_;
    n_ = sequence_of(p, begin - head_k_ * line_, chunk, lane, 1 + sequence_chunks);
  }

  // Whether there is more to do, and what.
  __device__ __forceinline__ bool next(Work& work) {
    while (head_k_ < p_.heads_k) {
      work.n = n_, work.sequence = sequence_at(p_, n_);
      work.head = head_k_ * p_.group + head_of_group_;
      origin_ = head_k_ * line_ + static_cast<int>(work.sequence.first_chunk) + n_ * sequence_chunks;
      if (cut(index_ + 1) <= origin_) return false;
      if (++n_ == p_.sequences) n_ = 0, head_k_++;
      if (find_share(work)) return true;
    }
    return false;
  }

 private:
  static constexpr int sequence_chunks = gated_delta_sequence_chunks;

  __device__ __forceinline__ int cut(int i) const { return i * length_ + min(i, longer_); }

  // Where cut i lies in a sequence: at a chunk, or at an end.
  __device__ __forceinline__ int place(int i, int chunks) const {
    const int c = cut(i) - origin_ - sequence_chunks / 2;
    if (c >= p_.least_piece && chunks - c >= p_.least_piece) return c;
    return c <= chunks / 2 ? 0 : chunks;
  }

  // This block's share of a sequence and head: whether there is one.
  __device__ __forceinline__ bool find_share(Work& work) const {
    const int chunks = work.sequence.chunks();
    if (chunks == 0) {  // its state moves all the same
      work.range = {0, 0, 0, true, -1}, work.narrow = false, work.value_block = value_block_;
      return cut(index_) <= origin_;
    }
    int begin = place(index_, chunks), end = place(index_ + 1, chunks);
    if (begin >= end) return false;
    const auto early = [&](int c) {
      return early_start(p_, work.sequence, work.head, c, min(c, p_.most_early), lane_);
    };
    int before = index_, after = index_ + 1, first = 0;  // cuts
    while (begin > 0 && (first = early(begin)) < 0) begin = place(--before, chunks);
    while (end < chunks && early(end) < 0) end = place(++after, chunks);
    work.range = {begin == 0 ? 0 : first, begin, end, begin == 0, -1};
    return share_range(work, before, after, chunks);
  }

  // Which part of work.range, between two cuts, is this block's.
  __device__ __forceinline__ bool share_range(Work& work, int before, int after, int chunks) const {
    work.narrow = false, work.value_block = value_block_;
    if (after == before + 1) return true;
    int most = 0, second = 0, most_at = before, second_at = before;
    for (int i = before; i < after; i++) {
      const int inside = min(place(i + 1, chunks), work.range.end) - max(place(i, chunks), work.range.emit);
      if (inside > most) {
        second = most, second_at = most_at;
        most = inside, most_at = i;
      } else if (inside > second) {
        second = inside, second_at = i;
      }
    }
    // A chunk of all columns takes 8/5 of half of them, and what is more than a block's own share makes it late: so two
    // that share one range do best from 5/16 and 11/16 on. From a quarter on here, or a block between two ranges of
    // which it has less than that is given both.
    work.narrow = second > 0 && 2 * (most - second) < work.range.end - work.range.emit;
    if (!work.narrow) return index_ == most_at;
    if (index_ != most_at && index_ != second_at) return false;
    work.value_block = 2 * value_block_ + (index_ == second_at);
    return work.value_block < p_.value_blocks;
  }

  const GatedDeltaForwardParams& p_;
  const int lane_, value_block_, head_of_group_, index_;
  const int line_;               // numbers of a key head
  int length_ = 0, longer_ = 0;  // of a range; the first ranges, which have one number more
  int head_k_, n_;               // of the sequence to look at next
  int origin_ = 0;               // its first number, among all key heads'
};

}  // namespace flashdelta::gated_delta
