#pragma once

#include <nanobind/nanobind.h>

namespace flashdelta::python {

void bind_calls(nanobind::module_& module);
void bind_plan(nanobind::module_& module);
void bind_cases(nanobind::module_& module);
void bind_synchronize(nanobind::module_& module);

}  // namespace flashdelta::python
