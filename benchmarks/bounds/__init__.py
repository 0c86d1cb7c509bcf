"""A fast rank with little memory: what a bound costs, and what micro-batches give back."""
