// flashdelta._native: the C ABI, the planner and the case list for the Python package, which is its only user.
#include "calls.hpp"
#include "flashdelta/flashdelta.h"

NB_MODULE(_native, module) {
  module.def("version", flashdelta_version);
  // "" where the backend can run, else why it cannot.
  module.def("why_unavailable", [](int backend) -> const char* {
    const bool there = flashdelta_backend_available(static_cast<flashdelta_backend>(backend)) == FLASHDELTA_OK;
    return there ? "" : flashdelta_last_error();
  });
  flashdelta::python::bind_calls(module);
  flashdelta::python::bind_plan(module);
  flashdelta::python::bind_cases(module);
  flashdelta::python::bind_synchronize(module);
}
