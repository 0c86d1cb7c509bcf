"""tf.data pipelines over the windows of `sampling`."""
