// What every function of the C boundary is wrapped in: a Status becomes a number and this thread's last sentence, and
// so does anything thrown.
#pragma once

#include <exception>
#include <new>
#include <string_view>

#include "core/status.hpp"

namespace flashdelta {

// Stores the sentence of a failure for flashdelta_last_error().
flashdelta_status report(const Status& status);

template <typename Body>
flashdelta_status guarded(Body body) {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report({FLASHDELTA_OUT_OF_MEMORY, "out of memory"});
  } catch (const std::exception& e) {
    return report({FLASHDELTA_INTERNAL_ERROR, e.what()});
  } catch (...) {
    return report({FLASHDELTA_INTERNAL_ERROR, "unknown exception"});
  }
}

template <typename T>
Status require(std::string_view name, const T* pointer) {
  if (pointer == nullptr) return invalid(name, "a pointer", "null");
  return {};
}

}  // namespace flashdelta
