// What this library was built from and for.
//
// Python reads the text from the file before it loads the library: one that was built for another
// TensorFlow can crash while it is being loaded.
//
// The interface counts up with each change of an op's or a C function's signature, here and in
// native.py: the version of the package stays the same between two releases.
#ifdef HVD_DBS_WITH_CUDA
#define HVD_DBS_CUDA "yes"
#else
#define HVD_DBS_CUDA "no"
#endif

extern "C" __attribute__((visibility("default"))) const char* hvd_dbs_native_identity() {
  return "hvd_dbs-native version=" HVD_DBS_VERSION " tensorflow=" HVD_DBS_TENSORFLOW_VERSION
         " cuda=" HVD_DBS_CUDA " interface=4;";
}
