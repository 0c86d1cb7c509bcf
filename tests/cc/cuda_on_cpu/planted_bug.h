// Bugs that are planted in copies of the core's sources: the test run chooses one of them.
#ifndef HVD_DBS_TESTS_CC_CUDA_ON_CPU_PLANTED_BUG_H_
#define HVD_DBS_TESTS_CC_CUDA_ON_CPU_PLANTED_BUG_H_

#include <cstdlib>
#include <cstring>

inline bool IsPlanted(const char* bug) {
  static const char* const chosen = std::getenv("HVD_DBS_PLANTED_BUG");
  return chosen != nullptr && std::strcmp(chosen, bug) == 0;
}

#endif  // HVD_DBS_TESTS_CC_CUDA_ON_CPU_PLANTED_BUG_H_
