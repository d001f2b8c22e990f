"""The page at /docs.

Owns: rendering the OpenAPI document as plain HTML. Must never enter: scripts, styles or fonts of other
servers, because gateways run where there is no internet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

Json = Any

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
pre {{ background: #f4f4f4; padding: .75rem; overflow: auto; max-height: 32rem; }}
code {{ font: 14px/1.45 ui-monospace, monospace; }}
details {{ border-top: 1px solid #ccc; padding: .5rem 0; }}
summary {{ cursor: pointer; }}
.method {{ display: inline-block; min-width: 3.5rem; font-weight: 600; }}
</style></head><body>
<h1>{title} <small>{version}</small></h1>
<p>Machine-readable: <a href="{openapi}">{openapi}</a></p>
"""


def docs_page(document: Mapping[str, Json], openapi: str) -> str:
    """Return the HTML page; ``openapi`` is the path of the document itself."""
    info = document["info"]
    head = _HEAD.format(title=escape(info["title"]), version=escape(info["version"]), openapi=escape(openapi))
    return head + "".join(_body(document)) + "</body></html>\n"


def _body(document: Mapping[str, Json]) -> Iterator[str]:
    tagged: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            (tag, *_) = operation.get("tags") or ["other"]
            tagged.setdefault(tag, []).append("".join(_operation(path, method, operation)))
    # The inference endpoints first: most readers look for them.
    for tag in sorted(tagged, key=lambda tag: (tag != "generate", tag)):
        yield f"<h2>{escape(tag)}</h2>\n{''.join(tagged[tag])}"
    yield "<h2>schemas</h2>\n"
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        title = f"<summary><code>{escape(name)}</code></summary>"
        yield f'<details id="{escape(name)}">{title}{_json(schema)}</details>\n'


def _operation(path: str, method: str, operation: Mapping[str, Json]) -> Iterator[str]:
    title = f'<span class="method">{escape(method.upper())}</span> <code>{escape(path)}</code>'
    yield f"<details><summary>{title} {escape(operation.get('summary', ''))}</summary>\n"
    if text := operation.get("description"):
        yield f"<p>{escape(text)}</p>\n"
    for content in _contents("Request", operation.get("requestBody", {})):
        yield content
    for status, reply in operation.get("responses", {}).items():
        yield f"<h3>{escape(str(status))} {escape(reply.get('description', ''))}</h3>\n"
        for content in _contents("Body", reply):
            yield content
    yield "</details>\n"


def _contents(label: str, holder: Mapping[str, Json]) -> Iterator[str]:
    for media_type, content in holder.get("content", {}).items():
        yield f"<h4>{label}: <code>{escape(media_type)}</code></h4>\n"
        examples = content.get("examples", {})
        for name, example in examples.items():
            yield f"<p>Example: {escape(example.get('summary', name))}</p>{_json(example.get('value'))}\n"
        if "example" in content:
            yield f"<p>Example</p>{_json(content['example'])}\n"
        if "schema" in content:
            yield f"<p>Schema</p>{_json(content['schema'])}\n"


def _json(value: Json) -> str:
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    return f"<pre><code>{escape(text)}</code></pre>"
