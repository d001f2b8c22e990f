"""The OpenAPI document, with the generate endpoints.

Owns: merging the operation that each format describes into the document that FastAPI makes of the control
routes. Must never enter: a schema of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.catalog import Endpoint

Json = Any

_BODIES = ("POST", "PUT", "PATCH")


def merge(document: dict[str, Json], endpoints: Iterable[Endpoint]) -> dict[str, Json]:
    """Add the operations of ``endpoints`` to ``document``, in place, and return it."""
    paths = document.setdefault("paths", {})
    components = document.setdefault("components", {}).setdefault("schemas", {})
    for endpoint in endpoints:
        name = endpoint.format.name
        operation = _hoist(endpoint.format.openapi(), name, components)
        path, parameters = _template(endpoint.path)
        paths[path] = {
            method.lower(): {
                "tags": ["generate"],
                **{
                    key: value
                    for key, value in operation.items()
                    if key != "requestBody" or method in _BODIES
                },
                **parameters,
                "operationId": f"generate_{name}_{method.lower()}_{_slug(endpoint.path)}",
            }
            for method in endpoint.methods
        }
    return document


def _template(path: str) -> tuple[str, dict[str, Json]]:
    """Return the path with a name for each wildcard, and the parameters of the operation."""
    if "*" not in path:
        return path, {}
    segments = [f"{{segment{at}}}" if each == "*" else each for at, each in enumerate(path.split("/"))]
    names = [each[1:-1] for each in segments if each.startswith("{")]
    schema = {"type": "string"}
    return "/".join(segments), {
        "parameters": [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]
    }


def _hoist(node: Json, name: str, components: dict[str, Json]) -> Json:
    """Return a copy of ``node`` with its ``$defs``, valid in one schema only, moved to ``components``."""
    if isinstance(node, Mapping):
        for key, schema in node.get("$defs", {}).items():
            components[f"{name}.{key}"] = _hoist(schema, name, components)
        return {
            key: _target(value, name) if key == "$ref" else _hoist(value, name, components)
            for key, value in node.items()
            if key != "$defs"
        }
    if isinstance(node, list | tuple):
        return [_hoist(item, name, components) for item in node]
    return node


def _target(reference: Json, name: str) -> Json:
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return f"#/components/schemas/{name}.{reference.removeprefix('#/$defs/')}"
    return reference


def _slug(path: str) -> str:
    return "".join(character if character.isalnum() else "_" for character in path.strip("/"))
