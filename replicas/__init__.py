"""The engine: target, drafter and rejection sampler as fixed-shape device programs. Never imports ray or serve_app."""
