"""Parts of the training benchmark, `benchmarks/train.py`."""
