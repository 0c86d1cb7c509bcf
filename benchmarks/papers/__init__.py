"""The papers' results, published and here, side by side; started by `scripts/bench.sh papers`."""
