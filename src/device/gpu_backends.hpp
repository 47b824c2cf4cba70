// The backends that run kernels: cuda and the emulator.
#pragma once

#include "core/backends.hpp"

namespace flashdelta {

extern const Backend cuda_backend;
extern const Backend emulator_backend;

// OK, or NOT_SUPPORTED with the reason: nothing built, no driver, no device.
Status cuda_available();
Status emulator_available();

// Whether a pointer is a CUDA device's memory; false where there is no driver.
bool is_device_memory(const void* pointer);

// Whether a stream is being captured in a graph, or that cannot be told.
bool may_be_captured(void* stream);

}  // namespace flashdelta
