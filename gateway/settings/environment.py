"""The environment, and which of its variables do nothing.

Owns: reading the environment (nothing else may), and the names that other frontends give a meaning. Must
never enter: what a variable means.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping

#: What a frontend of the same family also reads. Its user is told that it does nothing here, unless it is a
#: setting of ours as well.
_UNSUPPORTED = re.compile(
    r"DYN_(SGLANG_ENABLE_GENERATE|VLLM_ENABLE_INFERENCE_V1_GENERATE|HTTP_BACKEND_STREAM_TIMEOUT_SECS"
    r"|HTTP_PRE_COMMIT_ERROR_PEEK_MS|DISABLE_FRONTEND_\w+|METADATA_HEADER"
    r"|MIGRATION_\w+|ACTIVE_\w+_THRESHOLD\w*"
    r"|REQUEST_TRACE\w*|STRUCTURAL_TAG\w*|HISTOGRAM_DYN_METRICS_\w+|ROUTER_\w+"
    r"|NAMESPACE\w*|REQUEST_PLANE|EVENT_PLANE|STORE_KV|FILE_KV|SYSTEM_\w+|RUNTIME_\w+|TLS_\w+|KV_CACHE_BLOCK_SIZE"
    r"|MODEL_NAME|MODEL_PATH|LOGGING_\w+|AUDIT_\w+|TCP_\w+|LOG|SDK_\w+)"
)


def variables() -> Mapping[str, str]:
    """All variables, as they are now."""
    return os.environ  # noqa: TID251 - the one place that may


def ignored_variables(known: Collection[str]) -> str | None:
    """One line about the ``DYN_*`` variables that are set and not ``known``, or None.

    A misspelt name would otherwise be a setting that silently keeps its default.
    """
    strange = sorted(name for name in variables() if name.startswith("DYN_") and name not in known)
    unsupported = [name for name in strange if _UNSUPPORTED.fullmatch(name)]
    unknown = [name for name in strange if name not in unsupported]
    parts = [
        f"{label}: {', '.join(names)}"
        for label, names in (("unknown", unknown), ("not supported here", unsupported))
        if names
    ]
    return f"ignored environment variables: {'; '.join(parts)}" if parts else None
