"""A simulated vLLM 0.33.0 server: its token-in, token-out routes, its rules and its faults."""
