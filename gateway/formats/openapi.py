"""Parts of OpenAPI documents: schemas of pydantic models, headers.

Owns: the resolution of references inside a schema. Must never enter: a dialect's fields, the request path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel


def schema_of(model: type[BaseModel]) -> Any:
    """Return the schema of ``model`` without references, so that it can be placed anywhere in a document.

    The model must not refer to itself.
    """
    schema = model.model_json_schema()
    return _in_place(schema, schema.pop("$defs", {}))


def header_parameter(name: str, description: str) -> dict[str, Any]:
    """Return the description of a request header that may be left out."""
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": description,
        "schema": {"type": "string"},
    }


def _in_place(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_in_place(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if isinstance(reference := node.get("$ref"), str):
        node = {**definitions[reference.rpartition("/")[2]], **node}
        del node["$ref"]
    return {key: _in_place(value, definitions) for key, value in node.items()}
