"""Block ownership (no torch) and the tensor that the blocks index."""
