"""The Ray Serve application: settings, the OpenAI-compatible ingress, and one replica deployment a model."""

__version__ = "0.1.0"
