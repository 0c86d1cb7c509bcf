// The version of the package that this library was built from. Python compares it with its own
// before it uses the library: an editable install can meet a library from before the last update.

extern "C" __attribute__((visibility("default"))) const char* hvd_dbs_native_version() {
  return HVD_DBS_VERSION;
}
