"""One program a peer. Each runs in its peer's environment and imports nothing of ours but `benchmarks.peers.lines`."""
