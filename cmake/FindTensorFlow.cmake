# Finds the TensorFlow that a Python has installed, by asking it.
#
# Reads:   Python_EXECUTABLE (found if unset)
# Defines: TensorFlow_FOUND, TensorFlow_VERSION, the target TensorFlow::framework
#
# The target names libtensorflow_framework alone: it holds what a custom op needs, and linking more
# than that ties an op to one build of TensorFlow.
find_package(Python COMPONENTS Interpreter REQUIRED)

# Importing TensorFlow takes seconds, so the answer is remembered with the Python that gave it.
if(NOT TensorFlow_ANSWER OR NOT TensorFlow_ASKED STREQUAL Python_EXECUTABLE)
  set(question "import tensorflow as tf"
    "print(tf.__version__)"
    "print(tf.sysconfig.get_include())"
    "print(tf.sysconfig.get_lib())"
    "print('|'.join(f for f in tf.sysconfig.get_compile_flags() if f.startswith('-D')))"
    "print(tf.sysconfig.get_link_flags()[1].replace('-l:', ''))")
  list(JOIN question "\n" question)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env TF_CPP_MIN_LOG_LEVEL=3 CUDA_VISIBLE_DEVICES=
            "${Python_EXECUTABLE}" -c "${question}"
    OUTPUT_VARIABLE answer ERROR_VARIABLE complaint RESULT_VARIABLE status
    OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(status EQUAL 0)
    string(REPLACE "\n" ";" answer "${answer}")
    set(TensorFlow_ANSWER "${answer}" CACHE INTERNAL "What Python said about TensorFlow")
    set(TensorFlow_ASKED "${Python_EXECUTABLE}" CACHE INTERNAL "The Python that said it")
  else()
    unset(TensorFlow_ANSWER CACHE)
    message(STATUS "${Python_EXECUTABLE} cannot import TensorFlow: ${complaint}")
  endif()
endif()

if(TensorFlow_ANSWER)
  list(GET TensorFlow_ANSWER 0 TensorFlow_VERSION)
  list(GET TensorFlow_ANSWER 1 TensorFlow_INCLUDE_DIR)
  list(GET TensorFlow_ANSWER 2 TensorFlow_LIBRARY_DIR)
  list(GET TensorFlow_ANSWER 3 TensorFlow_DEFINITIONS)
  list(GET TensorFlow_ANSWER 4 TensorFlow_LIBRARY_NAME)
  string(REPLACE "|" ";" TensorFlow_DEFINITIONS "${TensorFlow_DEFINITIONS}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(TensorFlow
  REQUIRED_VARS TensorFlow_INCLUDE_DIR TensorFlow_LIBRARY_DIR TensorFlow_LIBRARY_NAME
  VERSION_VAR TensorFlow_VERSION)

if(TensorFlow_FOUND AND NOT TARGET TensorFlow::framework)
  add_library(TensorFlow::framework SHARED IMPORTED)
  set_target_properties(TensorFlow::framework PROPERTIES
    IMPORTED_LOCATION "${TensorFlow_LIBRARY_DIR}/${TensorFlow_LIBRARY_NAME}"
    IMPORTED_SONAME "${TensorFlow_LIBRARY_NAME}"
    INTERFACE_COMPILE_OPTIONS "${TensorFlow_DEFINITIONS}"
    INTERFACE_INCLUDE_DIRECTORIES "${TensorFlow_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TensorFlow_INCLUDE_DIR}")
endif()
