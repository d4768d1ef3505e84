"""Making an EAGLE3 head: self-written data, training-time test, evaluation."""
