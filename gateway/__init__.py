"""tito-gateway: an async HTTP gateway in front of fleets of LLM engines, token ids in and out."""
