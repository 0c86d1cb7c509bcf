"""Horovod's TensorFlow interface, with weighted averages for uneven batches."""
