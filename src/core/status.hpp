// One status and one sentence. Inside the library an error is a value that travels up; only the C boundary stores it.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

#include "flashdelta/flashdelta.h"

namespace flashdelta {

struct [[nodiscard]] Status {
  flashdelta_status code = FLASHDELTA_OK;
  std::string message;

  bool ok() const { return code == FLASHDELTA_OK; }
};

// A wrong argument: its name, what was expected, what came.
inline Status invalid(std::string_view argument, std::string_view expected, std::string_view got) {
  return {FLASHDELTA_INVALID_ARGUMENT, fmt::format("{}: expected {}, got {}", argument, expected, got)};
}

inline Status not_supported(std::string message) { return {FLASHDELTA_NOT_SUPPORTED, std::move(message)}; }

}  // namespace flashdelta

// Hands a failure to the caller.
#define FLASHDELTA_RETURN_IF_ERROR(expression)                                      \
  do {                                                                              \
    if (::flashdelta::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)
