"""Making drafters: self-written data, EAGLE3 heads by training-time test, small models and MTP layers by distilling."""
