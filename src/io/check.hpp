// What check_call is made of; for check*.cpp alone.
#pragma once

#include "io/call.hpp"

namespace flashdelta {

Status check_gated_delta(const Call& call, uint64_t seed, std::vector<OutputError>* errors);

}  // namespace flashdelta
