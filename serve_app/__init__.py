"""The Ray Serve application: settings, the OpenAI-compatible ingress, and one replica deployment a model."""
