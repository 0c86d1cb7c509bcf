// The program of scripts/gpu_check.sh.
#include <cstdio>
#include <cstring>

#include "tests/cc/check.h"
#include "tests/cc/gpu/device_memory.h"

namespace hvd_dbs_test {
void PrintBandwidths();
}

int main(int argc, char** argv) {
  int num_devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&num_devices);
  if (error != cudaSuccess || num_devices == 0) {
    std::printf("There is no GPU to check here (%s).\n", cudaGetErrorString(error));
    return 3;
  }
  const int status = hvd_dbs_test::RunAll("");
  if (status == 0 && !(argc > 1 && std::strcmp(argv[1], "--tests-only") == 0)) {
    hvd_dbs_test::PrintBandwidths();
  }
  return status;
}
