"""`scripts/gpu_check.sh --tensorflow`: training on a GPU, tried part by part."""
