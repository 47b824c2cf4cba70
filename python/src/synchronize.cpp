// For frameworks that show no stream (jax): wait until the default stream's work on a device is done.
#include "arrays.hpp"
#include "calls.hpp"
#if FLASHDELTA_GPU
#include "device/device.hpp"
#endif

namespace flashdelta::python {

void bind_synchronize(nb::module_& module) {
  module.def(
      "synchronize",
      [](int ordinal) {
#if FLASHDELTA_GPU
        Device* device = nullptr;
        Status status = open_cuda_device(ordinal, &device);
        if (status.ok()) {
          const nb::gil_scoped_release free_for_others;
          status = device->synchronize(nullptr);
        }
        if (!status.ok()) throw std::runtime_error(status.message);
#else
        throw std::runtime_error("cuda device " + std::to_string(ordinal) + ": this build has no CUDA backend");
#endif
      },
      nb::arg("device"));
}

}  // namespace flashdelta::python
