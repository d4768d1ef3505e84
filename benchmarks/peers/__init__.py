"""Other engines, measured next to ours."""
