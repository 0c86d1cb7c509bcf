// What HvdDbsReadRecords looks like to TensorFlow.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd_dbs {
namespace {

REGISTER_OP("HvdDbsReadRecords")
    .Input("paths: string")
    .Input("files: int64")
    .Input("begins: int64")
    .Input("ends: int64")
    .Output("records: string")
    .Attr("advice: string")
    .SetIsStateful()  // Files are not constants.
    .SetShapeFn([](::tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(1));
      return absl::OkStatus();
    })
    .Doc(R"doc(
Reads records of TFRecord files, and verifies them.

paths: Of the files, shape [num_files].
files: Each record's file, as its place in `paths`, shape [num_records].
begins: Where each record begins in its file, in bytes.
ends: Where each ends.
advice: What to do about a file that cannot be read; put after the error.
records: The data of each record.
)doc");

}  // namespace
}  // namespace hvd_dbs
