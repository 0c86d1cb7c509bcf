// HvdDbsUnpack on CPU and GPU: TensorFlow's tensors to the core's pointers.
#ifdef HVD_DBS_WITH_CUDA
#define EIGEN_USE_GPU
#endif
#define EIGEN_USE_THREADS

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hvd_dbs/ops/cc/core/pack.h"
#include "hvd_dbs/ops/cc/core/step_clock.h"
#include "hvd_dbs/ops/cc/kernels/number_types.h"
#include "hvd_dbs/ops/cc/kernels/worker_threads.h"
#include "tensorflow/core/framework/op_kernel.h"
#ifdef HVD_DBS_WITH_CUDA
#include "hvd_dbs/ops/cc/core/pack_cuda.h"
#endif

namespace hvd_dbs {
namespace {

using ::tensorflow::OpInputList;
using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::PartialTensorShape;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

template <typename Element, typename Wire>
class UnpackOp : public OpKernel {
 public:
  explicit UnpackOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("shapes", &known_shapes_));
    on_gpu_ = context->device_type() == tensorflow::DEVICE_GPU;
    OP_REQUIRES_OK(context, context->GetAttr("clock", &clock_));
    OP_REQUIRES_OK(context, context->GetAttr("number", &number_));
  }

  void Compute(OpKernelContext* context) override {
    // Of a GPU too: it may still have work queued that the sum has not waited for.
    if (const auto clock = FindStepClock(clock_)) clock->BucketBack(number_, HostMark());
    const Tensor& bucket = context->input(0);
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(context, Shapes(context, &shapes));
    std::vector<int64_t> counts;
    counts.reserve(shapes.size());
    for (const TensorShape& shape : shapes) counts.push_back(shape.num_elements());
    const BucketLayout layout(std::move(counts), sizeof(Wire));
    OP_REQUIRES(context, bucket.NumElements() == layout.length(),
                absl::InvalidArgumentError("HvdDbsUnpack: bucket was packed for other shapes."));

    if constexpr (std::is_same_v<Element, Wire>) {
      // Tensors of the bucket's own type stay where they are, in its memory.
      for (size_t i = 0; i < shapes.size(); ++i) {
        Tensor output;
        const Tensor part = bucket.Slice(layout.begin(i), layout.begin(i) + layout.count(i));
        OP_REQUIRES(context, output.CopyFrom(part, shapes[i]),
                    absl::InternalError("HvdDbsUnpack: shape and size differ."));
        context->set_output(static_cast<int>(i), output);
      }
    } else {
      Cast(context, bucket, layout, shapes);
    }
  }

 private:
  absl::Status Shapes(OpKernelContext* context, std::vector<TensorShape>* shapes) const {
    OpInputList dynamic;
    TF_RETURN_IF_ERROR(context->input_list("dynamic_shapes", &dynamic));
    shapes->resize(known_shapes_.size());
    for (size_t i = 0; i < known_shapes_.size(); ++i) {
      if (dynamic.size() > 0) {
        const auto dimensions = dynamic[static_cast<int>(i)].vec<int64_t>();
        TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(
            absl::Span<const int64_t>(dimensions.data(), dimensions.size()), &(*shapes)[i]));
      } else if (!known_shapes_[i].AsTensorShape(&(*shapes)[i])) {
        return absl::InvalidArgumentError("HvdDbsUnpack: a shape is neither known nor given.");
      }
    }
    return absl::OkStatus();
  }

  void Cast(OpKernelContext* context, const Tensor& bucket, const BucketLayout& layout,
            const std::vector<TensorShape>& shapes) const {
    std::vector<Element*> tensors;
    tensors.reserve(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      Tensor* output;
      OP_REQUIRES_OK(context,
                     context->allocate_output(static_cast<int>(i), shapes[i], &output));
      tensors.push_back(static_cast<Element*>(output->data()));
    }
    const Wire* data = static_cast<const Wire*>(bucket.data());
    if (on_gpu_) {
#ifdef HVD_DBS_WITH_CUDA
      const char* error =
          UnpackOnGpu(data, layout, tensors, context->eigen_gpu_device().stream());
      OP_REQUIRES(context, error == nullptr,
                  absl::InternalError(std::string("HvdDbsUnpack: ") + error));
#endif
    } else {
      Unpack(data, layout, tensors, WorkerThreads(context));
    }
  }

  std::vector<PartialTensorShape> known_shapes_;
  bool on_gpu_;
  int64_t clock_, number_;
};

#define HVD_DBS_REGISTER_ON(device, Element, Wire)                              \
  REGISTER_KERNEL_BUILDER(Name("HvdDbsUnpack")                                  \
                              .Device(device)                       \
                              .TypeConstraint<InTensorFlow<Element>::type>("T") \
                              .TypeConstraint<InTensorFlow<Wire>::type>("Wire") \
                              .HostMemory("dynamic_shapes"),                    \
                          UnpackOp<Element, Wire>);

#define HVD_DBS_REGISTER(Element, Wire) HVD_DBS_REGISTER_ON(tensorflow::DEVICE_CPU, Element, Wire)
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_REGISTER)
#undef HVD_DBS_REGISTER

#ifdef HVD_DBS_WITH_CUDA
#define HVD_DBS_REGISTER(Element, Wire) HVD_DBS_REGISTER_ON(tensorflow::DEVICE_GPU, Element, Wire)
HVD_DBS_FOR_EACH_PAIR(HVD_DBS_REGISTER)
#undef HVD_DBS_REGISTER
#endif

}  // namespace
}  // namespace hvd_dbs
