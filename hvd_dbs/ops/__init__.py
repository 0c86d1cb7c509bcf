"""What runs inside the training step: weights, the weighted allreduce, the step clock."""
