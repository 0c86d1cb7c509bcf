// What HvdDbsPack and HvdDbsUnpack look like to TensorFlow.
#include <cstdint>
#include <vector>

#include "hvd_dbs/ops/cc/core/bucket_layout.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace hvd_dbs {
namespace {

using ::tensorflow::DataType;
using ::tensorflow::PartialTensorShape;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

absl::Status PackShape(InferenceContext* context) {
  int num_tensors;
  DataType wire;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &num_tensors));
  TF_RETURN_IF_ERROR(context->GetAttr("Wire", &wire));
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(num_tensors), 0, &scalar));
  std::vector<int64_t> counts;
  for (int i = 0; i < num_tensors; ++i) {
    const auto count = context->NumElements(context->input(i));
    if (!context->ValueKnown(count)) {
      context->set_output(0, context->UnknownShapeOfRank(1));
      return absl::OkStatus();
    }
    counts.push_back(context->Value(count));
  }
  const BucketLayout layout(std::move(counts), ::tensorflow::DataTypeSize(wire));
  context->set_output(0, context->Vector(layout.length()));
  return absl::OkStatus();
}

absl::Status UnpackShape(InferenceContext* context) {
  std::vector<PartialTensorShape> shapes;
  TF_RETURN_IF_ERROR(context->GetAttr("shapes", &shapes));
  ShapeHandle vector;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 1, &vector));
  for (size_t i = 0; i < shapes.size(); ++i) {
    ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->MakeShapeFromPartialTensorShape(shapes[i], &shape));
    context->set_output(static_cast<int>(i), shape);
  }
  return absl::OkStatus();
}

REGISTER_OP("HvdDbsPack")
    .Input("tensors: N * T")
    .Input("factor: double")
    .Output("bucket: Wire")
    .Attr("N: int >= 1")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Wire: {half, float, double}")
    .Attr("clock: int = -1")
    .Attr("number: int = 0")
    .SetShapeFn(PackShape)
    .Doc(R"doc(
Copies tensors, times a factor, into one flat bucket.

With factor 0 the tensors are not read and count as zeros.

tensors: Any shapes.
factor: The rank's share of the weights of all ranks, in host memory.
bucket: Each tensor at a 64-byte boundary, zeros between them.
Wire: Type of the bucket: T or float or, for compression, half.
clock: Number of the step clock that notes when the bucket is there; negative: none does.
number: Of the bucket in the step.
)doc");

REGISTER_OP("HvdDbsUnpack")
    .Input("bucket: Wire")
    .Input("dynamic_shapes: D * int64")
    .Output("tensors: N * T")
    .Attr("N: int >= 1")
    .Attr("D: int >= 0")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Wire: {half, float, double}")
    .Attr("shapes: list(shape)")
    .Attr("clock: int = -1")
    .Attr("number: int = 0")
    .SetShapeFn(UnpackShape)
    .Doc(R"doc(
Takes the weighted means out of a bucket that was summed over all ranks.

If T is Wire the tensors are parts of the bucket's own memory, and nothing is computed.

bucket: Sum of what HvdDbsPack made on each rank.
dynamic_shapes: The shapes of all tensors, in host memory; nothing if all are known in advance.
tensors: In the order in which they were packed.
shapes: As far as the shapes are known in advance.
clock: Number of the step clock that notes that the sum is back; negative: none does.
number: Of the bucket in the step.
)doc");

}  // namespace
}  // namespace hvd_dbs
