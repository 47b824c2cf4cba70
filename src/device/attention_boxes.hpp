// Parameters of the kernel that has keys and values copied in boxes (paired.cuh).
#pragma once

#include "cuda/attention/paired_params.h"
#include "device/device.hpp"

namespace flashdelta {

// map(layout, &map): as Device::map_tensor. Where it says no to either tensor there are no boxes.
template <class Map>
AttentionPairedParams paired_params(const AttentionForwardParams& call, int block_kv, const Map& map) {
  AttentionPairedParams out{};
  out.call = call;
  const auto mapped = [&](const void* data, int features, const std::array<int64_t, 3>& strides, EncodedTensorMap* to) {
    const int64_t sequences = call.cu_seqlens_k != nullptr ? 1 : call.rows_k;
    const std::array<int64_t, 4> sizes{features, call.heads_k, call.length_k, sequences};
    return map(token_boxes(data, sizes, strides, static_cast<uint32_t>(block_kv)), to);
  };
  out.in_boxes =
      mapped(call.k, call.head_dim, {call.k_head_stride, call.k_token_stride, call.k_batch_stride}, &out.k_map) &&
      mapped(call.v, call.head_dim_v, {call.v_head_stride, call.v_token_stride, call.v_batch_stride}, &out.v_map);
  return out;
}

}  // namespace flashdelta
