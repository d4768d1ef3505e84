"""vLLM as an engine, behind the same protocol as our own (docs/decisions/0024-vllm-as-an-engine.md)."""
