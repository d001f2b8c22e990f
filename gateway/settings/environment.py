"""The environment variables, and which of them have no effect.

Owns: reading the environment (no other module may), and the names of variables that only other frontends use.
Must never enter: the meaning of a variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

#: Variables of Dynamo's frontend that have no effect here. The user is warned, unless it is a setting here,
#: too.
_UNSUPPORTED = re.compile(
    r"DYN_(ENABLE_STRUCTURAL_TAG|HTTP_BACKEND_STREAM_TIMEOUT_SECS"
    r"|HTTP_PRE_COMMIT_ERROR_PEEK_MS|DISABLE_FRONTEND_\w+|METADATA_HEADER"
    r"|MIGRATION_\w+|ACTIVE_\w+_THRESHOLD\w*"
    r"|REQUEST_TRACE\w*|STRUCTURAL_TAG\w*|HISTOGRAM_DYN_METRICS_\w+|ROUTER_\w+"
    r"|NAMESPACE\w*|REQUEST_PLANE|EVENT_PLANE|STORE_KV|FILE_KV|SYSTEM_\w+|RUNTIME_\w+|TLS_\w+|KV_CACHE_BLOCK_SIZE"
    r"|MODEL_NAME|MODEL_PATH|LOGGING_\w+|AUDIT_\w+|TCP_\w+|LOG|SDK_\w+)"
)


def variables() -> Mapping[str, str]:
    """Return all environment variables as they are now."""
    return os.environ  # noqa: TID251 - the only module that reads them


def ignored_variables(known: Collection[str]) -> str | None:
    """Return one line about the ``DYN_*`` variables that are set and not ``known``, None if there is none.

    Without it, a setting with a misspelt name would silently keep its default.
    """
    others = sorted(name for name in variables() if name.startswith("DYN_") and name not in known)
    unsupported = [name for name in others if _UNSUPPORTED.fullmatch(name)]
    unknown = [name for name in others if name not in unsupported]
    parts = [
        f"{label}: {', '.join(names)}"
        for label, names in (("unknown", unknown), ("not supported here", unsupported))
        if names
    ]
    return f"ignored environment variables: {'; '.join(parts)}" if parts else None
