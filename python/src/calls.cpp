// The two operations: arrays in, workspace from the caller's allocator, the C ABI's run on the caller's stream.
#include "calls.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <vector>

#include "arrays.hpp"
#include "workspace.hpp"

namespace flashdelta::python {
namespace {

template <typename Args>
struct Field {
  const char* name;
  flashdelta_tensor Args::*member;
  bool written = false;
};

using Attention = flashdelta_attention_forward_args;
constexpr Field<Attention> attention_fields[] = {
    {"q", &Attention::q},
    {"k", &Attention::k},
    {"v", &Attention::v},
    {"o", &Attention::o, true},
    {"lse", &Attention::lse, true},
    {"sink", &Attention::sink},
    {"cu_seqlens_q", &Attention::cu_seqlens_q},
    {"cu_seqlens_k", &Attention::cu_seqlens_k},
    {"seqused_k", &Attention::seqused_k},
    {"cache_batch_idx", &Attention::cache_batch_idx},
    {"page_table", &Attention::page_table},
};

using GatedDelta = flashdelta_gated_delta_forward_args;
constexpr Field<GatedDelta> gated_delta_fields[] = {
    {"q", &GatedDelta::q},
    {"k", &GatedDelta::k},
    {"v", &GatedDelta::v},
    {"g", &GatedDelta::g},
    {"beta", &GatedDelta::beta},
    {"A_log", &GatedDelta::A_log},
    {"dt_bias", &GatedDelta::dt_bias},
    {"a", &GatedDelta::a},
    {"b", &GatedDelta::b},
    {"o", &GatedDelta::o, true},
    {"initial_state", &GatedDelta::initial_state},
    {"final_state", &GatedDelta::final_state, true},
    {"checkpoints", &GatedDelta::checkpoints, true},
    {"cu_seqlens", &GatedDelta::cu_seqlens},
    {"initial_state_indices", &GatedDelta::initial_state_indices},
    {"final_state_indices", &GatedDelta::final_state_indices},
    {"token_state_indices", &GatedDelta::token_state_indices},
    {"num_accepted_tokens", &GatedDelta::num_accepted_tokens},
};

// Overloads, so that one template serves both operations.
flashdelta_status workspace_bytes(const Attention* a, const flashdelta_execution* e, size_t* bytes) {
  return flashdelta_attention_forward_workspace(a, e, bytes);
}
flashdelta_status workspace_bytes(const GatedDelta* a, const flashdelta_execution* e, size_t* bytes) {
  return flashdelta_gated_delta_forward_workspace(a, e, bytes);
}
flashdelta_status run(const Attention* a, const flashdelta_execution* e, void* workspace, size_t bytes) {
  return flashdelta_attention_forward(a, e, workspace, bytes);
}
flashdelta_status run(const GatedDelta* a, const flashdelta_execution* e, void* workspace, size_t bytes) {
  return flashdelta_gated_delta_forward(a, e, workspace, bytes);
}

// Fills an output that the caller left out, where q's framework can make it without Python's help.
void make_output(const Array& q, flashdelta_dtype dtype, std::initializer_list<int64_t> shape, flashdelta_tensor* view,
                 nb::object* object) {
  if (view->dtype != FLASHDELTA_NONE || q.exchange == nullptr) return;
  NewArray made = new_array(q, dtype, static_cast<int32_t>(shape.size()), shape.begin());
  *view = made.view;
  *object = std::move(made.object);
}

// The arrays behind a call's views, all on the device of the first: that one, and what keeps the others' memory where
// the caller's references to them do not.
struct Arrays {
  Array q;
  std::vector<nb::object> owners;
};

// new_outputs: what is written was made for this call, and may be of a framework that calls all its arrays read-only.
template <typename Args, size_t N>
Arrays read_arrays(const nb::tuple& arrays, const Field<Args> (&fields)[N], bool new_outputs, uint64_t stream,
                   Args* args) {
  Arrays read;
  for (size_t i = 0; i < N; i++) {
    const nb::handle given(PyTuple_GetItem(arrays.ptr(), static_cast<Py_ssize_t>(i)));
    if (given.is_none()) continue;
    Array array = read_array(given, fields[i].name, fields[i].written && !new_outputs, stream);
    args->*fields[i].member = array.view;
    if (read.q.view.dtype == FLASHDELTA_NONE) {
      read.q = std::move(array);
      continue;
    }
    if (!(array.place == read.q.place)) {
      throw nb::value_error((std::string(fields[i].name) + ": expected an array on " + read.q.place.name() +
                             " like q, got one on " + array.place.name())
                                .c_str());
    }
    if (array.owner.is_valid()) read.owners.push_back(std::move(array.owner));
  }
  if (read.q.view.dtype == FLASHDELTA_NONE) throw nb::type_error("q: expected an array, got None");
  return read;
}

// Ctrl-C stops a long call on the CPU.
int32_t check_signals(void*, int64_t, int64_t) {
  const nb::gil_scoped_acquire held;
  return PyErr_CheckSignals();
}

flashdelta_execution make_execution(const Array& q, int backend, int arch, int num_threads, uint64_t stream) {
  flashdelta_execution execution = FLASHDELTA_EXECUTION_INIT;
  const Place& place = q.place;
  if (!place.is_cuda() && !place.is_host()) {
    throw nb::value_error(("q: expected an array on cpu or cuda, got one on " + place.name()).c_str());
  }
  if (backend == FLASHDELTA_BACKEND_AUTO) backend = place.is_cuda() ? FLASHDELTA_BACKEND_CUDA : FLASHDELTA_BACKEND_CPU;
  if ((backend == FLASHDELTA_BACKEND_CUDA) != place.is_cuda()) {
    throw nb::value_error(("backend: expected one that runs on q's device, " + place.name() + ", got " +
                           (backend == FLASHDELTA_BACKEND_CUDA  ? "cuda"
                            : backend == FLASHDELTA_BACKEND_CPU ? "cpu"
                                                                : "emulator"))
                              .c_str());
  }
  execution.backend = static_cast<flashdelta_backend>(backend);
  execution.device = place.is_cuda() ? place.id : 0;
  execution.stream = current_stream(q, stream);
  execution.arch = arch;
  execution.num_threads = num_threads;
  if (!place.is_cuda()) execution.progress = check_signals;
  return execution;
}

template <typename Args>
flashdelta_status run_on(const Args& args, const flashdelta_execution& execution, void* workspace, size_t bytes) {
  const nb::gil_scoped_release free_for_others;
  return run(&args, &execution, workspace, bytes);
}

// What the last call of its kind on this thread needed. The layers of a model repeat their shapes, and asking again
// would make the same plan again. A guess that is too small is refused by the run before anything is launched.
struct Guess {
  flashdelta_tensor q{}, k{}, v{};
  int32_t backend = 0, device = 0, arch = 0, num_threads = 0;
  size_t bytes = 0;

  template <typename Args>
  bool fits(const Args& args, const flashdelta_execution& e) const {
    return q.dtype != FLASHDELTA_NONE && same(q, args.q) && same(k, args.k) && same(v, args.v) &&
           backend == e.backend && device == e.device && arch == e.arch && num_threads == e.num_threads;
  }
  template <typename Args>
  void learn(const Args& args, const flashdelta_execution& e, size_t needed) {
    *this = {args.q, args.k, args.v, e.backend, e.device, e.arch, e.num_threads, needed};
  }

 private:
  static bool same(const flashdelta_tensor& a, const flashdelta_tensor& b) {
    return a.ndim == b.ndim && a.dtype == b.dtype && std::equal(a.shape, a.shape + a.ndim, b.shape);
  }
};

// Device memory comes from the framework, so that its allocator sees it; host memory is our own.
template <typename Args>
flashdelta_status run_with(const Args& args, const Array& q, const flashdelta_execution& execution, size_t bytes,
                           const nb::object& allocate) {
  if (bytes == 0) return run_on(args, execution, nullptr, 0);
  if (execution.backend != FLASHDELTA_BACKEND_CUDA) {
    const std::unique_ptr<void, decltype(&std::free)> own(
        std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment), std::free);
    if (own == nullptr) throw std::bad_alloc();
    return run_on(args, execution, own.get(), bytes);
  }
  if (q.exchange != nullptr) {
    const Workspace workspace(q, execution.stream, bytes);
    return run_on(args, execution, workspace.data(), bytes);
  }
  const nb::object borrowed = allocate((bytes + kAlignment) / 4 + 1);  // int32 elements, with room to align
  const Array memory = read_array(borrowed, "workspace", false, 0);
  return run_on(args, execution, aligned(memory.view.data), bytes);
}

template <typename Args>
void run_call(const Args& args, const Array& q, const flashdelta_execution& execution, const nb::object& allocate) {
  static thread_local Guess guess;
  if (guess.fits(args, execution)) {
    const flashdelta_status status = run_with(args, q, execution, guess.bytes, allocate);
    if (status != FLASHDELTA_WORKSPACE_TOO_SMALL) return check(status);
  }
  size_t bytes = 0;
  check(workspace_bytes(&args, &execution, &bytes));
  guess.learn(args, execution, bytes);
  check(run_with(args, q, execution, bytes, allocate));
}

// A size of a shape; 0 where there is no such dimension: the check then says what is wrong.
int64_t size(const flashdelta_tensor& t, int32_t dimension) {
  const int32_t at = dimension < 0 ? t.ndim + dimension : dimension;
  return at >= 0 && at < t.ndim ? t.shape[at] : 0;
}

double or_nan(const nb::object& number) { return number.is_none() ? std::nan("") : nb::cast<double>(number); }

const int64_t* host_lengths(const std::vector<int64_t>& lengths) { return lengths.empty() ? nullptr : lengths.data(); }

// o and lse: those given, or new ones (lse where it is asked for).
nb::tuple attention_forward(const nb::tuple& arrays, bool return_lse, int64_t max_seqlen_q, int64_t max_seqlen_k,
                            const std::vector<int64_t>& host_cu_seqlens_q,
                            const std::vector<int64_t>& host_cu_seqlens_k, const nb::object& scale, double softcap,
                            int64_t window_left, int64_t window_right, bool causal, int backend, int arch,
                            int num_threads, uint64_t stream, const nb::object& allocate, bool new_outputs) {
  Attention args;
  flashdelta_attention_forward_init(&args);
  const Arrays read = read_arrays(arrays, attention_fields, new_outputs, stream, &args);
  args.max_seqlen_q = max_seqlen_q;
  args.max_seqlen_k = max_seqlen_k;
  args.host_cu_seqlens_q = host_lengths(host_cu_seqlens_q);
  args.host_cu_seqlens_k = host_lengths(host_cu_seqlens_k);
  args.scale = or_nan(scale);
  args.softcap = softcap;
  args.window_left = window_left;
  args.window_right = window_right;
  args.causal = causal ? 1 : 0;
  const Array& q = read.q;
  nb::object o = arrays[3], lse = arrays[4];
  const bool packed = args.cu_seqlens_q.dtype != FLASHDELTA_NONE;
  const int64_t dv = size(args.v, -1);
  if (packed) {
    make_output(q, args.q.dtype, {size(args.q, 0), size(args.q, 1), dv}, &args.o, &o);
    if (return_lse) make_output(q, FLASHDELTA_FP32, {size(args.q, 1), size(args.q, 0)}, &args.lse, &lse);
  } else {
    make_output(q, args.q.dtype, {size(args.q, 0), size(args.q, 1), size(args.q, 2), dv}, &args.o, &o);
    if (return_lse) {
      make_output(q, FLASHDELTA_FP32, {size(args.q, 0), size(args.q, 2), size(args.q, 1)}, &args.lse, &lse);
    }
  }
  run_call(args, q, make_execution(q, backend, arch, num_threads, stream), allocate);
  return nb::make_tuple(o, lse);
}

// o and final_state: those given, or new ones (final_state where it is asked for).
nb::tuple gated_delta_forward(const nb::tuple& arrays, bool output_final_state, int64_t max_seqlen,
                              const std::vector<int64_t>& host_cu_seqlens, const nb::object& scale, double beta_scale,
                              double decay_threshold, int64_t checkpoint_every, int chunk, bool qk_l2norm,
                              int state_layout, int context_parallel, int backend, int arch, int num_threads,
                              uint64_t stream, const nb::object& allocate, bool new_outputs) {
  GatedDelta args;
  flashdelta_gated_delta_forward_init(&args);
  const Arrays read = read_arrays(arrays, gated_delta_fields, new_outputs, stream, &args);
  args.max_seqlen = max_seqlen;
  args.host_cu_seqlens = host_lengths(host_cu_seqlens);
  args.scale = or_nan(scale);
  args.beta_scale = beta_scale;
  args.decay_threshold = decay_threshold;
  args.checkpoint_every = checkpoint_every;
  args.chunk = chunk;
  args.qk_l2norm = qk_l2norm ? 1 : 0;
  args.state_layout = static_cast<flashdelta_state_layout>(state_layout);
  args.context_parallel = static_cast<flashdelta_context_parallel>(context_parallel);
  const Array& q = read.q;
  nb::object o = arrays[9], final_state = arrays[11];
  const flashdelta_tensor& v = args.v;
  make_output(q, args.q.dtype, {size(v, 0), size(v, 1), size(v, 2), size(v, 3)}, &args.o, &o);
  if (output_final_state) {
    const bool packed = args.cu_seqlens.dtype != FLASHDELTA_NONE;
    const int64_t sequences = packed ? std::max<int64_t>(size(args.cu_seqlens, 0) - 1, 0) : size(args.q, 0);
    const bool kv = args.state_layout == FLASHDELTA_STATE_KV;
    const int64_t rows = kv ? size(args.q, -1) : size(v, -1), columns = kv ? size(v, -1) : size(args.q, -1);
    const flashdelta_dtype dtype = args.initial_state.dtype == FLASHDELTA_BF16 ? FLASHDELTA_BF16 : FLASHDELTA_FP32;
    make_output(q, dtype, {sequences, size(v, 2), rows, columns}, &args.final_state, &final_state);
  }
  run_call(args, q, make_execution(q, backend, arch, num_threads, stream), allocate);
  return nb::make_tuple(o, final_state);
}

}  // namespace

void bind_calls(nb::module_& module) {
  module.def("attention_forward", attention_forward, nb::arg("arrays"), nb::arg("return_lse"), nb::arg("max_seqlen_q"),
             nb::arg("max_seqlen_k"), nb::arg("host_cu_seqlens_q"), nb::arg("host_cu_seqlens_k"),
             nb::arg("scale").none(), nb::arg("softcap"), nb::arg("window_left"), nb::arg("window_right"),
             nb::arg("causal"), nb::arg("backend"), nb::arg("arch"), nb::arg("num_threads"), nb::arg("stream"),
             nb::arg("allocate").none(), nb::arg("new_outputs"));
  module.def("gated_delta_forward", gated_delta_forward, nb::arg("arrays"), nb::arg("output_final_state"),
             nb::arg("max_seqlen"), nb::arg("host_cu_seqlens"), nb::arg("scale").none(), nb::arg("beta_scale"),
             nb::arg("decay_threshold"), nb::arg("checkpoint_every"), nb::arg("chunk"), nb::arg("qk_l2norm"),
             nb::arg("state_layout"), nb::arg("context_parallel"), nb::arg("backend"), nb::arg("arch"),
             nb::arg("num_threads"), nb::arg("stream"), nb::arg("allocate").none(), nb::arg("new_outputs"));
}

}  // namespace flashdelta::python
