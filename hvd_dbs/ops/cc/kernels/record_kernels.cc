// HvdDbsReadRecords on CPU.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "hvd_dbs/ops/cc/core/record_files.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hvd_dbs {
namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::tstring;

constexpr size_t kMostOpenFiles = 64;

class ReadRecordsOp : public OpKernel {
 public:
  explicit ReadRecordsOp(OpKernelConstruction* context)
      : OpKernel(context), open_files_(kMostOpenFiles) {
    OP_REQUIRES_OK(context, context->GetAttr("advice", &advice_));
  }

  void Compute(OpKernelContext* context) override {
    const auto paths = context->input(0).flat<tstring>();
    const auto files = context->input(1).flat<int64_t>();
    const auto begins = context->input(2).flat<int64_t>();
    const auto ends = context->input(3).flat<int64_t>();
    const int64_t count = files.size();
    OP_REQUIRES(context, begins.size() == count && ends.size() == count,
                absl::InvalidArgumentError("HvdDbsReadRecords: files, begins and ends must have "
                                           "the same length."));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(1).shape(), &output));
    auto records = output->flat<tstring>();
    std::vector<RecordRead> run;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t size = ends(i) - begins(i) - kRecordOverhead;
      OP_REQUIRES(context, size >= 0 && files(i) >= 0 && files(i) < paths.size(),
                  absl::InvalidArgumentError("HvdDbsReadRecords: no such record."));
      records(i).resize_uninitialized(static_cast<size_t>(size));
      run.push_back({begins(i), size, records(i).mdata()});
      // What lies side by side is read at once.
      if (i + 1 < count && files(i + 1) == files(i) && begins(i + 1) == ends(i)) continue;
      const std::string path(paths(files(i)));
      const auto file = open_files_.Open(path);
      const std::string wrong = file->descriptor() < 0
                                    ? std::string(std::strerror(file->error()))
                                    : ReadConsecutiveRecords(file->descriptor(), run);
      OP_REQUIRES(context, wrong.empty(),
                  absl::DataLossError(path + ": " + wrong + " " + advice_));
      run.clear();
    }
  }

 private:
  std::string advice_;
  OpenRecordFiles open_files_;
};

REGISTER_KERNEL_BUILDER(Name("HvdDbsReadRecords").Device(tensorflow::DEVICE_CPU), ReadRecordsOp);

}  // namespace
}  // namespace hvd_dbs
