// Tensor maps from the driver as the CUDA runtime finds it.
#pragma once

#include <cuda_runtime_api.h>

#include "device/tensor_map.hpp"

namespace flashdelta::bench {

// False: the driver refuses the layout, or has no such maps.
inline bool encode_tensor_map(const TensorLayout& layout, EncodedTensorMap* map) {
  void* encode = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, &found);
  return error == cudaSuccess && found == cudaDriverEntryPointSuccess &&
         flashdelta::encode_tensor_map(reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(encode), layout, map);
}

}  // namespace flashdelta::bench
