#include "hvd_dbs/ops/cc/core/record_files.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>

#include "hvd_dbs/ops/cc/core/crc32c.h"

namespace hvd_dbs {
namespace {

// What is fetched at once where records are short, and where they are long and only headers count.
constexpr int64_t kChunk = 256 * 1024;
constexpr int64_t kHeaderChunk = 64;
constexpr int64_t kLongRecord = 16 * 1024;

template <typename Number>
Number LittleEndian(const char* data) {
  Number value = 0;
  for (size_t i = 0; i < sizeof(Number); ++i) {
    value |= static_cast<Number>(static_cast<uint8_t>(data[i])) << (8 * i);
  }
  return value;
}

// Bytes read, fewer at the end of the file; negative: errno says why.
int64_t ReadFully(int file, char* data, int64_t count, int64_t offset) {
  int64_t done = 0;
  while (done < count) {
    const ssize_t got = pread(file, data + done, static_cast<size_t>(count - done), offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

// A part of a file in memory.
class Lookahead {
 public:
  explicit Lookahead(int file) : file_(file) {}

  // `count` bytes at `offset`, with at least `chunk` fetched if they are not there yet. Null:
  // the file ends before (`*failed` false), or cannot be read.
  const char* At(int64_t offset, int64_t count, int64_t chunk, bool* failed) {
    if (offset < begin_ || offset + count > begin_ + held_) {
      const int64_t wanted = std::max(count, chunk);
      if (static_cast<int64_t>(bytes_.size()) < wanted) bytes_.resize(wanted);
      held_ = 0;
      const int64_t got = ReadFully(file_, bytes_.data(), wanted, offset);
      *failed = got < 0;
      if (got < count) return nullptr;
      begin_ = offset;
      held_ = got;
    }
    return bytes_.data() + (offset - begin_);
  }

 private:
  const int file_;
  std::vector<char> bytes_;
  int64_t begin_ = 0;
  int64_t held_ = 0;
};

std::string Wrong(int64_t offset, const std::string& what) {
  return "record at offset " + std::to_string(offset) + ": " + what;
}

std::string Unreadable(int64_t offset) { return Wrong(offset, std::strerror(errno)); }

// One system call's worth of consecutive records: fixed parts and data in turn.
std::string ReadRun(int file, const RecordRead* records, size_t count) {
  // The checksum of one record's data and the header of the next lie side by side.
  std::vector<char> fixed(count * kRecordOverhead);
  std::vector<iovec> parts;
  parts.reserve(2 * count + 1);
  size_t next_fixed = kRecordHeader;
  parts.push_back({fixed.data(), kRecordHeader});
  for (size_t i = 0; i < count; ++i) {
    parts.push_back({records[i].data, static_cast<size_t>(records[i].size)});
    const size_t length = i + 1 < count ? kRecordOverhead : kRecordOverhead - kRecordHeader;
    parts.push_back({fixed.data() + next_fixed, length});
    next_fixed += length;
  }
  int64_t offset = records[0].offset;
  size_t first = 0;
  while (first < parts.size()) {
    if (parts[first].iov_len == 0) {
      ++first;
      continue;
    }
    const ssize_t got = preadv(file, &parts[first], static_cast<int>(parts.size() - first), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(offset);
    if (got == 0) return Wrong(records[0].offset, "the file ends before it or those after it.");
    offset += got;
    size_t left = static_cast<size_t>(got);
    while (left > 0) {
      const size_t taken = std::min(left, parts[first].iov_len);
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + taken;
      parts[first].iov_len -= taken;
      left -= taken;
      if (parts[first].iov_len == 0) ++first;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const char* header = fixed.data() + i * kRecordOverhead;
    if (LittleEndian<uint64_t>(header) != static_cast<uint64_t>(records[i].size)) {
      return Wrong(records[i].offset, "its length is not what it was when the file was indexed.");
    }
    const uint32_t expected = LittleEndian<uint32_t>(header + kRecordHeader);
    if (Masked(Crc32c(records[i].data, static_cast<size_t>(records[i].size))) != expected) {
      return Wrong(records[i].offset, "its data do not match their checksum.");
    }
  }
  return "";
}

}  // namespace

Scan ScanRecords(int file, int64_t size, int64_t offset, size_t capacity, bool verify) {
  Scan scan{{}, offset, ScanStatus::kDone};
  Lookahead bytes(file);
  int64_t chunk = kChunk;
  while (scan.next < size && scan.offsets.size() < capacity) {
    bool failed = false;
    const char* header = bytes.At(scan.next, kRecordHeader, chunk, &failed);
    if (header == nullptr) {
      scan.status = failed ? ScanStatus::kUnreadable : ScanStatus::kCutOff;
      return scan;
    }
    if (Masked(Crc32c(header, 8)) != LittleEndian<uint32_t>(header + 8)) {
      scan.status = ScanStatus::kBadLength;
      return scan;
    }
    const uint64_t length = LittleEndian<uint64_t>(header);
    const int64_t left = size - scan.next - kRecordOverhead;
    if (left < 0 || length > static_cast<uint64_t>(left)) {
      scan.status = ScanStatus::kCutOff;
      return scan;
    }
    const int64_t data = scan.next + kRecordHeader;
    const int64_t count = static_cast<int64_t>(length);
    bool is_bad = false;
    if (verify) {
      const char* found = bytes.At(data, count + 4, kChunk, &failed);
      if (found == nullptr) {
        scan.status = failed ? ScanStatus::kUnreadable : ScanStatus::kCutOff;
        return scan;
      }
      is_bad = Masked(Crc32c(found, length)) != LittleEndian<uint32_t>(found + count);
    }
    scan.offsets.push_back(scan.next);
    scan.next = data + count + 4;
    chunk = verify || count < kLongRecord ? kChunk : kHeaderChunk;
    if (is_bad) {
      scan.status = ScanStatus::kBadData;
      return scan;
    }
  }
  return scan;
}

RecordFile::RecordFile(const std::string& path)
    : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC)), error_(descriptor_ < 0 ? errno : 0) {}

RecordFile::~RecordFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

std::shared_ptr<const RecordFile> OpenRecordFiles::Open(const std::string& path) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto entry = newest_first_.begin(); entry != newest_first_.end(); ++entry) {
    if (entry->path == path) {
      newest_first_.splice(newest_first_.begin(), newest_first_, entry);
      return entry->file;
    }
  }
  auto file = std::make_shared<const RecordFile>(path);
  if (file->descriptor() >= 0) {
    newest_first_.push_front({path, file});
    if (newest_first_.size() > capacity_) newest_first_.pop_back();
  }
  return file;
}

std::string ReadConsecutiveRecords(int file, const std::vector<RecordRead>& records) {
  constexpr size_t kMost = (IOV_MAX - 1) / 2;
  for (size_t first = 0; first < records.size(); first += kMost) {
    const size_t count = std::min(kMost, records.size() - first);
    std::string wrong = ReadRun(file, records.data() + first, count);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace hvd_dbs

// What Python calls through ctypes: writes the offsets of at most `capacity` records and the
// offset after them; returns their number.
extern "C" __attribute__((visibility("default"))) int64_t hvd_dbs_scan_records(
    int32_t file, int64_t size, int64_t offset, int64_t* offsets, int64_t capacity, int32_t verify,
    int64_t* next, int32_t* status) {
  const hvd_dbs::Scan scan = hvd_dbs::ScanRecords(file, size, offset,
                                                  static_cast<size_t>(capacity), verify != 0);
  std::copy(scan.offsets.begin(), scan.offsets.end(), offsets);
  *next = scan.next;
  *status = static_cast<int32_t>(scan.status);
  return static_cast<int64_t>(scan.offsets.size());
}
