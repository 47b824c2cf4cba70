// The test kernels' PTX, by the name of their .cu file.
#pragma once

#include <string_view>

namespace flashdelta::test {

std::string_view test_kernels(std::string_view file);  // empty where the build had no nvcc

}  // namespace flashdelta::test
