"""Load over HTTP on any OpenAI-compatible server, with locust; each request is a row."""
