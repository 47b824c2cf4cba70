// The C++ case list, for the Python benchmark and tests: names and options, and each case's inputs as DLPack arrays.
#include "cases/cases.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "calls.hpp"

namespace flashdelta::python {
namespace {

namespace nb = nanobind;

nb::dlpack::dtype dlpack_dtype(flashdelta_dtype dtype) {
  using nb::dlpack::dtype_code;
  const auto make = [](dtype_code code, uint8_t bits) {
    return nb::dlpack::dtype{static_cast<uint8_t>(code), bits, 1};
  };
  switch (dtype) {
    case FLASHDELTA_BF16: return make(dtype_code::Bfloat, 16);
    case FLASHDELTA_FP16: return make(dtype_code::Float, 16);
    case FLASHDELTA_FP32: return make(dtype_code::Float, 32);
    case FLASHDELTA_INT32: return make(dtype_code::Int, 32);
    default: return make(dtype_code::Int, 64);
  }
}

nb::ndarray<> array(const HostTensor& tensor) {
  auto* kept = new HostTensor(tensor);
  const nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<HostTensor*>(memory); });
  std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  return {tensor.data(), shape.size(), shape.data(), owner, nullptr, dlpack_dtype(tensor.dtype())};
}

nb::dict options_dict(const Case& c) {
  const CallOptions& o = c.options;
  nb::dict out;
  out["scale"] = o.scale;
  if (c.operation == Operation::attention_forward) {
    out["causal"] = o.causal;
    out["window_left"] = o.window_left;
    out["window_right"] = o.window_right;
    out["softcap"] = o.softcap;
    return out;
  }
  out["qk_l2norm"] = o.l2norm;
  out["state_layout"] = o.state_layout == FLASHDELTA_STATE_VK ? "vk" : "kv";
  out["chunk"] = o.chunk;
  out["beta_scale"] = o.beta_scale;
  out["checkpoint_every"] = o.checkpoint_every;
  out["decay_threshold"] = o.decay_threshold;
  out["context_parallel"] = o.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_OFF           ? "off"
                            : o.context_parallel == FLASHDELTA_CONTEXT_PARALLEL_DECAY_START ? "decay_start"
                                                                                            : "exact";
  return out;
}

nb::list list_cases() {
  nb::list out;
  for (const Case& c : cases()) {
    nb::dict row;
    row["name"] = c.name;
    row["source"] = c.source;
    row["operation"] = std::string(operation_name(c.operation));
    row["bench"] = c.bench;
    row["options"] = options_dict(c);
    row["heads_q"] = c.heads_q;
    row["heads_k"] = c.heads_k;
    row["head_dim"] = c.head_dim;
    row["head_dim_v"] = c.head_dim_v;
    row["lengths_q"] = c.lengths_q;
    row["lengths_k"] = c.lengths_k;
    out.append(row);
  }
  return out;
}

nb::dict case_inputs(const std::string& name, uint64_t seed) {
  const auto found = std::find_if(cases().begin(), cases().end(), [&](const Case& c) { return c.name == name; });
  if (found == cases().end()) throw nb::value_error(("name: expected a case's name, got '" + name + "'").c_str());
  nb::dict out;
  for (const auto& [key, tensor] : found->inputs(*found, seed)) out[key.c_str()] = array(tensor);
  return out;
}

}  // namespace

void bind_cases(nb::module_& module) {
  module.def("cases", list_cases);
  module.def("case_inputs", case_inputs, nb::arg("name"), nb::arg("seed"));
}

}  // namespace flashdelta::python
