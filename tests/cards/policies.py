"""Values of the structural-tag flag."""

from __future__ import annotations

from typing import Any

#: Policies by the members of a JSON object, over the defaults of the flag.
FIELDS: dict[str, dict[str, Any]] = {
    '{"scope":"auto"}': {"scope": "auto"},
    '{"scope":"always"}': {"scope": "always"},
    '{"schema":"auto"}': {"schema": "auto"},
    '{"schema":"strict"}': {"schema": "strict"},
    '{"allow_tool_calls_with_structured_output":true}': {"allow_tool_calls_with_structured_output": True},
    '{"allow_tool_calls_with_structured_output":false}': {"allow_tool_calls_with_structured_output": False},
    '{"exclude_special_tokens":true}': {"exclude_special_tokens": True},
    '{"exclude_special_tokens":false}': {"exclude_special_tokens": False},
    '{"exclude_special_tokens":null}': {"exclude_special_tokens": None},
    '{"reasoning_boundary":"auto"}': {"reasoning_boundary": "auto"},
    '{"reasoning_boundary":"structural_tag"}': {"reasoning_boundary": "structural_tag"},
    '{"reasoning_boundary":"backend"}': {"reasoning_boundary": "backend"},
    '{"tool_arguments_any_order":true}': {"tool_arguments_any_order": True},
    '{"tool_arguments_any_order":false}': {"tool_arguments_any_order": False},
    '{"scope":"auto","schema":"strict","tool_arguments_any_order":true}': {
        "scope": "auto",
        "schema": "strict",
        "tool_arguments_any_order": True,
    },
    '{"scope":"always","scope":"auto"}': {"scope": "auto"},
}
TRUE = ("true", "1", "yes", "on", "TRUE", "True", "Yes", "YES", "ON", "On", " true ", "\ton\n", " 1", "tRuE")
FALSE = (
    "false",
    "0",
    "no",
    "off",
    "FALSE",
    "False",
    "No",
    "NO",
    "OFF",
    "Off",
    " false ",
    "\toff\n",
    "0 ",
    "oFf",
)
#: Texts that are refused, and what the error has to name.
REFUSED = {
    "": "empty",
    "   ": "empty",
    "{": '"{"',
    '{"scope":': "JSON object",
    "[]": "[]",
    "null": "null",
    '"true"': "true",
    "2": "2",
    "t": "t",
    "enabled": "enabled",
    "--scope": "--scope",
    '{"scope":null}': "scope",
    '{"schema":null}': "schema",
    '{"reasoning_boundary":null}': "reasoning_boundary",
    '{"tool_arguments_any_order":null}': "tool_arguments_any_order",
    '{"allow_tool_calls_with_structured_output":null}': "allow_tool_calls_with_structured_output",
    '{"scope":"sometimes"}': "sometimes",
    '{"scope":"Always"}': "Always",
    '{"scope":true}': "scope",
    '{"scope":["auto"]}': "scope",
    '{"schema":"Strict"}': "Strict",
    '{"reasoning_boundary":"engine"}': "engine",
    '{"tool_arguments_any_order":1}': "tool_arguments_any_order",
    '{"allow_tool_calls_with_structured_output":"yes"}': "allow_tool_calls_with_structured_output",
    '{"exclude_special_tokens":0}': "exclude_special_tokens",
    '{"enabled":true}': "enabled",
    '{"mode":"on"}': "mode",
    '{"scope":"auto","tag":1}': "tag",
}
