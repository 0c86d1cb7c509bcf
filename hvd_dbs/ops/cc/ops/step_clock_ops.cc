// What the step clock's operations look like to TensorFlow.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hvd_dbs {
namespace {

// Stateful, or two in one graph would be taken for the same, or for constants.
REGISTER_OP("HvdDbsStepUnderWay")
    .Output("step: int64")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Which step of the epoch is under way, in host memory; negative where nobody says so.

clock: Number of the step clock.
)doc");

REGISTER_OP("HvdDbsStepFed")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Notes that the data of a step are there: those it runs after.

clock: Number of the step clock.
)doc");

REGISTER_OP("HvdDbsStepReady")
    .Output("noted: bool")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Notes that this rank's own gradients are ready: those it runs after, on its device.

clock: Number of the step clock.
noted: For HvdDbsStepBack, in host memory.
)doc");

REGISTER_OP("HvdDbsStepBack")
    .Input("noted: bool")
    .Input("num_samples: int64")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Notes that the reduced gradients are back: those it runs after, on its device.

noted: Of HvdDbsStepReady in the same step.
num_samples: What this rank contributed, in host memory.
clock: Number of the step clock.
)doc");

REGISTER_OP("HvdDbsStepSignal")
    .Output("signal: float")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
What this rank signals to the others in this step: 1 where it has changed, else 0.

clock: Number of the step clock.
)doc");

REGISTER_OP("HvdDbsStepReceiveSignal")
    .Input("signal: float")
    .Attr("clock: int")
    .SetIsStateful()
    .SetShapeFn(::tensorflow::shape_inference::NoOutputs)
    .Doc(R"doc(
Notes whether some rank has signalled a change in this step.

signal: A mean of the signals of all ranks, a scalar.
clock: Number of the step clock.
)doc");

}  // namespace
}  // namespace hvd_dbs
