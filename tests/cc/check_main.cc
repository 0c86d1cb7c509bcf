#include "tests/cc/check.h"

int main(int argc, char** argv) { return hvd_dbs_test::RunAll(argc > 1 ? argv[1] : ""); }
