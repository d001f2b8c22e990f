"""The fields of an engine's requests and replies, by engine, and what the gateway does with each."""
