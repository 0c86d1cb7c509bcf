// The least that a test needs: named tests, checks that go on, a number of failures.
#ifndef HVD_DBS_TESTS_CC_CHECK_H_
#define HVD_DBS_TESTS_CC_CHECK_H_

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace hvd_dbs_test {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& AllTests() {
  static std::vector<Test> tests;
  return tests;
}

inline int& NumFailures() {
  static int failures = 0;
  return failures;
}

struct Registration {
  Registration(const char* name, void (*run)()) { AllTests().push_back({name, run}); }
};

inline void Fail(const char* file, int line, const std::string& what) {
  // The first few say what is wrong; a million more would only say how often.
  if (++NumFailures() <= 20) std::printf("%s:%d: %s\n", file, line, what.c_str());
}

// Runs the tests whose name contains `filter`; returns the exit status.
inline int RunAll(const std::string& filter) {
  for (const Test& test : AllTests()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    const int before = NumFailures();
    test.run();
    std::printf("%s %s\n", NumFailures() == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%d failures\n", NumFailures());
  return NumFailures() == 0 ? 0 : 1;
}

}  // namespace hvd_dbs_test

#define HVD_DBS_TEST(name)                                               \
  static void name();                                                    \
  static const hvd_dbs_test::Registration registration_##name(#name, name); \
  static void name()

#define HVD_DBS_CHECK(condition, what)                                                   \
  do {                                                                                   \
    if (!(condition)) hvd_dbs_test::Fail(__FILE__, __LINE__, std::string(#condition ": ") + (what)); \
  } while (false)

#endif  // HVD_DBS_TESTS_CC_CHECK_H_
