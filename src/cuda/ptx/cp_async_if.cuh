// cp.async under a predicate of its own: where `condition` is false nothing is copied. Without a branch, so that the
// instructions around it may still change places.
#pragma once

#include <cstdint>

namespace flashdelta::ptx {

__device__ __forceinline__ void cp_async_16_if(bool condition, uint32_t shared_address, const void* global) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.s32 p, %2, 0;\n\t@p cp.async.cg.shared.global [%0], [%1], 16;\n\t}" ::"r"(
                   shared_address),
               "l"(global), "r"(static_cast<int>(condition))
               : "memory");
}

}  // namespace flashdelta::ptx
