"""Record batches to Arrow and back, with compiled loops where numba is at hand and plain Python where it is not."""
