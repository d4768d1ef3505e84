"""The processes of one model's ranks: rank 0 is the engine's own, and drives the others."""
