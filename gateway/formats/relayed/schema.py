"""The OpenAPI operations of relayed routes.

Owns: these operations. Must never enter: schemas of bodies, which are the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_OBJECT: Mapping[str, Any] = {"type": "object", "properties": {"model": {"type": "string"}}}
_ERROR: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


def operation(path: str) -> Mapping[str, Any]:
    """Return the OpenAPI operation of the route at ``path``."""
    content = {"application/json": {"schema": _OBJECT}}
    failed = {"application/json": {"schema": _ERROR}}
    return {
        "tags": ["inference"],
        "summary": f"The engine's own {path}, forwarded as it is",
        "description": "The model is chosen by `model` in the body, or by the header `X-Model`.",
        "requestBody": {"required": True, "content": {**content, "*/*": {"schema": {}}}},
        "responses": {
            "200": {"description": "The engine's reply", "content": {**content, "text/event-stream": {}}},
            "502": {"description": "The worker failed", "content": failed},
            "503": {"description": "No worker is available", "content": failed},
        },
    }
