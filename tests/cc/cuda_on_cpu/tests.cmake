# The .cu sources as C++ for a CPU, under sanitizers; and copies of them with bugs, which must be
# caught.
set(cuda_on_cpu "${PROJECT_SOURCE_DIR}/cuda_on_cpu")

# Compiles sources, those of CUDA among them, as C++ against the header of this folder.
function(add_cuda_on_cpu target)
  add_library(${target} OBJECT ${ARGN})
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  target_include_directories(${target} PRIVATE "${cuda_on_cpu}" "${repository}")
  # -x: the ending .cu says nothing to a C++ compiler. CUDA's compiler lets a kernel read numbers in
  # place as vectors; C++ would need a copy.
  target_compile_options(${target} PRIVATE ${sanitizers} -x c++ -O1 -Wall -Wextra -Werror
    -Wno-unknown-pragmas -fno-strict-aliasing)
endfunction()

add_cuda_on_cpu(cuda_tests gpu/pack_cuda_test.cu gpu/device_signal_test.cu
  cuda_on_cpu/event_clock_test.cc cuda_on_cpu/late_signal_test.cc cuda_on_cpu/huge_buckets_test.cc
  cuda_on_cpu/device.cc cuda_on_cpu/memory.cc check_main.cc "${core}/step_clock.cc")
add_cuda_on_cpu(cuda_sources "${core}/pack_cuda.cu" "${core}/event_mark.cu"
  "${core}/device_signal.cu")
add_executable(cuda_on_cpu_test $<TARGET_OBJECTS:cuda_tests> $<TARGET_OBJECTS:cuda_sources>)
target_link_options(cuda_on_cpu_test PRIVATE ${sanitizers})
add_test(NAME cuda_on_cpu COMMAND cuda_on_cpu_test)

# Replaces `right` in `source` where the bug `name` is chosen. `test` then has to fail, and what it
# prints must match `caught`.
function(plant name source right wrong test caught)
  string(FIND "${${source}_text}" "${right}" place)
  if(place EQUAL -1)
    message(FATAL_ERROR "${source}.cu has no '${right}' any more: plant ${name} elsewhere.")
  endif()
  string(REPLACE "${right}" "(IsPlanted(\"${name}\") ? ${wrong} : ${right})" text "${${source}_text}")
  set(${source}_text "${text}" PARENT_SCOPE)
  add_test(NAME ${name}_is_caught COMMAND planted_bugs_test ${test})
  set_tests_properties(${name}_is_caught PROPERTIES
    ENVIRONMENT "HVD_DBS_PLANTED_BUG=${name}" PASS_REGULAR_EXPRESSION "${caught}")
endfunction()

set(planted_sources)
foreach(source pack_cuda event_mark device_signal)
  file(READ "${core}/${source}.cu" ${source}_text)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${core}/${source}.cu")
  list(APPEND planted_sources "${PROJECT_BINARY_DIR}/planted/${source}.cu")
endforeach()
plant(off_by_one_in_a_tail pack_cuda "first + kVector <= count" "first + kVector <= count + 1"
  PacksAndUnpacks "AddressSanitizer: heap-buffer-overflow")
plant(missing_alignment_check pack_cuda
  "reinterpret_cast<uintptr_t>(pointer) % (sizeof(Number) * kCount) == 0" "true"
  PacksAndUnpacks "runtime error: .*misaligned address")
plant(factor_zero_reads_tensors pack_cuda "factor == 0" "factor < 0"
  FactorZeroReadsNothing "FAILED FactorZeroReadsNothing")
plant(launch_on_the_default_stream pack_cuda "Grid(blocks, stream)" "Grid(blocks, nullptr)"
  FactorZeroReadsNothing "FAILED FactorZeroReadsNothing")
plant(event_on_another_stream event_mark
  "cudaEventRecord(event, stream)" "cudaEventRecord(event, nullptr)"
  LateDevice "FAILED ALateDevicesStepsAreKnownWhenItHasDoneThem")
plant(event_of_the_threads_device event_mark "current != device" "false"
  StartsNoOtherDevice "FAILED AClockThatIsReadByAnotherThreadStartsNoOtherDevice")
plant(look_that_waits event_mark "cudaEventQuery(event_)" "cudaDeviceSynchronize()"
  LateDevice "the host has waited")
plant(signal_without_a_wait device_signal "cudaEventSynchronize(event_)" "cudaEventQuery(event_)"
  SignalIsTaken "FAILED ASignalIsTakenOnceTheDeviceHasIt")
plant(signal_memory_freed_too_early device_signal
  "cudaEventQuery(event_) != cudaErrorNotReady" "true"
  StandsStill "AddressSanitizer: heap-use-after-free")
foreach(source pack_cuda event_mark device_signal)
  file(GENERATE OUTPUT "${PROJECT_BINARY_DIR}/planted/${source}.cu"
    CONTENT "#include \"tests/cc/cuda_on_cpu/planted_bug.h\"\n${${source}_text}")
endforeach()
add_cuda_on_cpu(planted_bugs ${planted_sources})
add_executable(planted_bugs_test $<TARGET_OBJECTS:cuda_tests> $<TARGET_OBJECTS:planted_bugs>)
target_link_options(planted_bugs_test PRIVATE ${sanitizers})
