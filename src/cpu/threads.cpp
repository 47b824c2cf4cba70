#include <omp.h>

#include <algorithm>

#include "cpu/cpu.hpp"

namespace flashdelta::cpu {

int thread_count(const flashdelta_execution& execution) {
  return execution.num_threads > 0 ? execution.num_threads : std::max(omp_get_max_threads(), 1);
}

}  // namespace flashdelta::cpu
