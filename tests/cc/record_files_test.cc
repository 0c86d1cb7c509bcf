// Records that were written are found and read; what is wrong with them is said.
#include "hvd_dbs/ops/cc/core/record_files.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "hvd_dbs/ops/cc/core/crc32c.h"
#include "tests/cc/check.h"

namespace hvd_dbs {
namespace {

std::string Bytes(uint64_t number, size_t size) {
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(number >> (8 * i)));
  return bytes;
}

std::string Record(const std::string& data) {
  const std::string length = Bytes(data.size(), 8);
  return length + Bytes(Masked(Crc32c(length.data(), 8)), 4) + data +
         Bytes(Masked(Crc32c(data.data(), data.size())), 4);
}

// A file that is gone when the test is over.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) : path_("/tmp/hvd_dbs_records_XXXXXX") {
    descriptor_ = mkstemp(path_.data());
    if (write(descriptor_, content.data(), content.size()) !=
        static_cast<ssize_t>(content.size())) {
      std::abort();
    }
  }
  ~TemporaryFile() {
    close(descriptor_);
    unlink(path_.c_str());
  }
  int descriptor() const { return descriptor_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int descriptor_;
};

std::vector<std::string> SomeRecords() {
  std::mt19937 random(1);
  std::vector<std::string> records;
  // Short ones, empty ones, and some longer than what a scan fetches at once.
  for (const size_t size : {0, 1, 7, 300000, 100, 20000, 17000, 0, 0, 5, 700000, 3}) {
    std::string data(size, '\0');
    for (char& byte : data) byte = static_cast<char>(random());
    records.push_back(data);
  }
  for (int i = 0; i < 1200; ++i) records.push_back(std::to_string(i));
  return records;
}

}  // namespace

HVD_DBS_TEST(ChecksumsAreThoseOfTheStandard) {
  HVD_DBS_CHECK(Crc32c("123456789", 9) == 0xe3069283u, "check value");
  HVD_DBS_CHECK(PortableCrc32c("123456789", 9) == 0xe3069283u, "check value by tables");
  std::mt19937 random(2);
  std::string data(8000, '\0');
  for (char& byte : data) byte = static_cast<char>(random());
  for (size_t size = 0; size < data.size(); size += 1 + size / 7) {
    for (const size_t begin : {0, 1, 3}) {
      if (begin + size > data.size()) continue;
      HVD_DBS_CHECK(Crc32c(data.data() + begin, size) == PortableCrc32c(data.data() + begin, size),
                    std::to_string(size));
    }
  }
}

HVD_DBS_TEST(RecordsAreFoundAndRead) {
  const std::vector<std::string> records = SomeRecords();
  std::string content;
  std::vector<int64_t> begins;
  for (const std::string& record : records) {
    begins.push_back(static_cast<int64_t>(content.size()));
    content += Record(record);
  }
  const TemporaryFile file(content);
  const auto size = static_cast<int64_t>(content.size());
  for (const bool verify : {false, true}) {
    for (const size_t capacity : {1, 5, 100000}) {
      std::vector<int64_t> found;
      Scan scan{{}, 0, ScanStatus::kDone};
      while (scan.next < size && scan.status == ScanStatus::kDone) {
        scan = ScanRecords(file.descriptor(), size, scan.next, capacity, verify);
        HVD_DBS_CHECK(scan.offsets.size() <= capacity, "more than fit");
        found.insert(found.end(), scan.offsets.begin(), scan.offsets.end());
      }
      HVD_DBS_CHECK(found == begins && scan.next == size, "offsets");
    }
  }
  OpenRecordFiles files(1);
  const auto open_file = files.Open(file.path());
  HVD_DBS_CHECK(files.Open(file.path()) == open_file, "opened again");
  HVD_DBS_CHECK(files.Open("/nowhere/at/all")->error() == ENOENT, "no such file");
  // All at once is more than one system call may take.
  std::vector<std::string> read;
  std::vector<RecordRead> reads;
  for (const std::string& record : records) read.emplace_back(record.size(), '\0');
  for (size_t i = 0; i < records.size(); ++i) {
    reads.push_back({begins[i], static_cast<int64_t>(records[i].size()), read[i].data()});
  }
  HVD_DBS_CHECK(ReadConsecutiveRecords(open_file->descriptor(), reads).empty(), "all");
  HVD_DBS_CHECK(read == records, "data");
  reads.resize(1);
  ++reads[0].size;
  std::string longer(1, '\0');
  reads[0].data = longer.data();
  HVD_DBS_CHECK(ReadConsecutiveRecords(open_file->descriptor(), reads).find("length") !=
                    std::string::npos,
                "another length");
}

HVD_DBS_TEST(DamageIsSeen) {
  const std::string first = Record("first"), second = Record("second");
  const auto scan_of = [](const std::string& content, bool verify) {
    const TemporaryFile file(content);
    return ScanRecords(file.descriptor(), static_cast<int64_t>(content.size()), 0, 100, verify);
  };
  for (size_t cut = 1; cut < second.size(); ++cut) {
    const Scan scan = scan_of(first + second.substr(0, cut), false);
    HVD_DBS_CHECK(scan.status == ScanStatus::kCutOff && scan.offsets.size() == 1 &&
                      scan.next == static_cast<int64_t>(first.size()),
                  std::to_string(cut));
  }
  for (size_t place = 0; place < first.size(); ++place) {
    std::string damaged = first;
    damaged[place] ^= 4;
    const bool in_header = place < kRecordHeader;
    const Scan scan = scan_of(damaged + second, true);
    HVD_DBS_CHECK(scan.status == (in_header ? ScanStatus::kBadLength : ScanStatus::kBadData),
                  std::to_string(place));
    HVD_DBS_CHECK(scan.offsets.size() == (in_header ? 0u : 1u), std::to_string(place));
    const TemporaryFile file(damaged);
    std::string data(5, '\0');
    const std::string wrong = ReadConsecutiveRecords(file.descriptor(), {{0, 5, data.data()}});
    // Of the header only the length counts then.
    HVD_DBS_CHECK(wrong.empty() == (place >= 8 && in_header), std::to_string(place) + wrong);
  }
  std::string endless = Bytes(~0ull, 8);
  endless += Bytes(Masked(Crc32c(endless.data(), 8)), 4);
  HVD_DBS_CHECK(scan_of(endless + second, false).status == ScanStatus::kCutOff, "endless");
  HVD_DBS_CHECK(ScanRecords(-1, 100, 0, 10, false).status == ScanStatus::kUnreadable, "no file");
}

}  // namespace hvd_dbs
