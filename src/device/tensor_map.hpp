// A TensorLayout in the form that cuTensorMapEncodeTiled takes.
#pragma once

#include <cuda.h>

#include "device/device.hpp"

namespace flashdelta {

// False: the driver refuses the layout.
inline bool encode_tensor_map(decltype(&cuTensorMapEncodeTiled) encode, const TensorLayout& layout,
                              EncodedTensorMap* map) {
  static_assert(sizeof(CUtensorMap) == sizeof(EncodedTensorMap) && alignof(CUtensorMap) <= alignof(EncodedTensorMap));
  constexpr std::array<uint32_t, 4> every_element{1, 1, 1, 1};
  return encode(reinterpret_cast<CUtensorMap*>(map), CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
                const_cast<void*>(layout.data), layout.sizes.data(), layout.strides.data(), layout.box.data(),
                every_element.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace flashdelta
