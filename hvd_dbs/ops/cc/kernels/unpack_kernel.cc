// HvdDbsUnpack on CPU and GPU: TensorFlow's tensors to the core's pointers.
#ifdef HVD_DBS_WITH_CUDA
#define EIGEN_USE_GPU
#endif
#define EIGEN_USE_THREADS

#include <type_traits>
#include <utility>
#include <vector>

#include "hvd_dbs/ops/cc/core/pack.h"
#include "hvd_dbs/ops/cc/core/weighting.h"
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
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& bucket = context->input(0);
    OpInputList total;
    OP_REQUIRES_OK(context, context->input_list("total", &total));
    const double expected_total = context->input(1 + total.size()).scalar<float>()();
    std::vector<TensorShape> shapes;
    OP_REQUIRES_OK(context, Shapes(context, &shapes));
    std::vector<int64_t> counts;
    counts.reserve(shapes.size());
    for (const TensorShape& shape : shapes) counts.push_back(shape.num_elements());
    const bool with_weight = total.size() == 0;
    const BucketLayout layout(std::move(counts), sizeof(Wire), with_weight);
    OP_REQUIRES(context, bucket.NumElements() == layout.length(),
                absl::InvalidArgumentError("HvdDbsUnpack: bucket was packed for other shapes."));

    // Tensors of the bucket's own type stay where they are: in the bucket, or in a copy of it
    // where somebody else reads the bucket and the values are not yet what they shall be.
    Tensor home = bucket;
    if constexpr (std::is_same_v<Element, Wire>) {
      const bool is_final = !on_gpu_ && Factor(bucket, total, expected_total) == 1;
      if (!is_final) {
        auto forwarded =
            context->forward_input(0, tensorflow::OpKernelContext::Params::kNoReservation,
                                   bucket.dtype(), bucket.shape(), tensorflow::DEVICE_MEMORY,
                                   tensorflow::AllocatorAttributes());
        if (forwarded != nullptr) {
          home = *forwarded;
        } else {
          OP_REQUIRES_OK(context,
                         context->allocate_temp(bucket.dtype(), bucket.shape(), &home));
        }
      }
    }
    std::vector<Element*> tensors;
    tensors.reserve(shapes.size());
    for (size_t i = 0; i < shapes.size(); ++i) {
      Tensor output;
      if constexpr (std::is_same_v<Element, Wire>) {
        const Tensor part = home.Slice(layout.begin(i), layout.begin(i) + layout.count(i));
        OP_REQUIRES(context, output.CopyFrom(part, shapes[i]),
                    absl::InternalError("HvdDbsUnpack: shape and size differ."));
        context->set_output(static_cast<int>(i), output);
        tensors.push_back(static_cast<Element*>(output.data()));
      } else {
        Tensor* allocated;
        OP_REQUIRES_OK(context,
                       context->allocate_output(static_cast<int>(i), shapes[i], &allocated));
        tensors.push_back(static_cast<Element*>(allocated->data()));
      }
    }

    const Wire* data = static_cast<const Wire*>(bucket.data());
    if (on_gpu_) {
#ifdef HVD_DBS_WITH_CUDA
      auto* stream = context->eigen_gpu_device().stream();
      const char* error;
      if constexpr (std::is_same_v<Wire, Half>) {
        error = UnpackOnGpu(data, layout, static_cast<const float*>(total[0].data()),
                            expected_total, tensors, stream);
      } else {
        error = UnpackOnGpu(data, layout, data, expected_total, tensors, stream);
      }
      OP_REQUIRES(context, error == nullptr,
                  absl::InternalError(std::string("HvdDbsUnpack: ") + error));
#endif
    } else {
      Unpack(data, layout, Total(bucket, total), expected_total, tensors, WorkerThreads(context));
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

  static double Total(const Tensor& bucket, const OpInputList& total) {
    if (total.size() > 0) return total[0].scalar<float>()();
    return Widen<double>(*static_cast<const Wire*>(bucket.data()));
  }

  static double Factor(const Tensor& bucket, const OpInputList& total, double expected_total) {
    return UnpackFactor(Total(bucket, total), expected_total);
  }

  std::vector<PartialTensorShape> known_shapes_;
  bool on_gpu_;
};

#define HVD_DBS_REGISTER_ON(device, Element, Wire)                              \
  REGISTER_KERNEL_BUILDER(Name("HvdDbsUnpack")                                  \
                              .Device(device)                       \
                              .TypeConstraint<InTensorFlow<Element>::type>("T") \
                              .TypeConstraint<InTensorFlow<Wire>::type>("Wire") \
                              .HostMemory("expected_total")                     \
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
