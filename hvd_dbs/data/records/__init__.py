"""TFRecord files: index, native reader and its reference implementation."""
