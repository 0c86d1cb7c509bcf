// What this library was built from and for.
//
// Python reads the text from the file before it loads the library: one that was built for another
// TensorFlow can crash while it is being loaded.
#ifdef HVD_DBS_WITH_CUDA
#define HVD_DBS_CUDA "yes"
#else
#define HVD_DBS_CUDA "no"
#endif

extern "C" __attribute__((visibility("default"))) const char* hvd_dbs_native_identity() {
  return "hvd_dbs-native version=" HVD_DBS_VERSION " tensorflow=" HVD_DBS_TENSORFLOW_VERSION
         " cuda=" HVD_DBS_CUDA ";";
}
