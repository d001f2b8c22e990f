"""A simulated SGLang 0.5.22 server: its native routes, its rules and its faults."""
