// The 16-bit number formats that tensor-core kernels read. Plain C++: the host's table and the kernels share it.
#pragma once

#include <cstdint>

namespace flashdelta {

enum class Element : uint8_t { bf16, fp16 };

constexpr const char* element_name(Element element) { return element == Element::bf16 ? "bf16" : "fp16"; }

}  // namespace flashdelta
