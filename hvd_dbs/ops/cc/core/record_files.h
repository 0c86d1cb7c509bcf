// TFRecord files: where their records are, and reading those that are asked for.
//
// A record is 8 bytes of length (little endian), their masked CRC-32C, the data, and the data's
// masked CRC-32C; records follow each other without gaps.
#ifndef HVD_DBS_OPS_CC_CORE_RECORD_FILES_H_
#define HVD_DBS_OPS_CC_CORE_RECORD_FILES_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace hvd_dbs {

constexpr int64_t kRecordHeader = 12;
constexpr int64_t kRecordOverhead = 16;

// Why a scan stopped.
enum class ScanStatus : int32_t {
  kDone = 0,          // At the end of the file, or as many records as fit were found.
  kCutOff = 1,        // The file ends inside of the record.
  kBadLength = 2,     // The length does not match its checksum.
  kBadData = 3,       // The data do not match theirs: the last record found.
  kUnreadable = 4,    // The system says so in errno.
};

struct Scan {
  std::vector<int64_t> offsets;  // Of each record found.
  int64_t next;                  // Where the one after them begins.
  ScanStatus status;
};

// Finds at most `capacity` records of an open file of `size` bytes from an offset on, by their
// headers; their data are read only where they are to be verified, or are shorter than skipping
// them would take.
Scan ScanRecords(int file, int64_t size, int64_t offset, size_t capacity, bool verify);

// An open file; closed with the last who uses it.
class RecordFile {
 public:
  explicit RecordFile(const std::string& path);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  int descriptor() const { return descriptor_; }  // Negative: it could not be opened.
  int error() const { return error_; }            // Then errno.

 private:
  int descriptor_;
  int error_;
};

// The files used last stay open. Safe to use from several threads.
class OpenRecordFiles {
 public:
  explicit OpenRecordFiles(size_t capacity) : capacity_(capacity) {}
  std::shared_ptr<const RecordFile> Open(const std::string& path);

 private:
  struct Entry {
    std::string path;
    std::shared_ptr<const RecordFile> file;
  };

  const size_t capacity_;
  std::mutex mutex_;
  std::list<Entry> newest_first_;
};

// A record to read: `size` bytes of data into `data`.
struct RecordRead {
  int64_t offset;
  int64_t size;
  char* data;
};

// Reads records that follow each other in a file without gaps, in as few system calls as the
// system allows, and verifies them. Returns what is wrong, or an empty text.
std::string ReadConsecutiveRecords(int file, const std::vector<RecordRead>& records);

}  // namespace hvd_dbs

#endif  // HVD_DBS_OPS_CC_CORE_RECORD_FILES_H_
