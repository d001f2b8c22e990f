"""Settings: paths.

Owns: the configurable paths of routes. Must never enter: the check for two equal paths, which is the
catalog's.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.settings.fields import Route, Section, setting


class Paths(Section):
    """Paths."""

    sglang_generate_path: Route = setting(
        "DYN_HTTP_SVC_SGLANG_GENERATE_PATH",
        "/generate",
        "Path of the endpoint whose format DYN_GENERATE_FORMAT names",
    )
    vllm_generate_path: Route = setting(
        "DYN_HTTP_SVC_VLLM_GENERATE_PATH", "/inference/v1/generate", "Path of the vLLM generate endpoint"
    )

    sglang_enable_generate: bool = setting(
        "DYN_SGLANG_ENABLE_GENERATE",
        True,
        "Serve the endpoints of the SGLang format; off: they are a 404, its other routes are served",
    )
    vllm_enable_inference_v1_generate: bool = setting(
        "DYN_VLLM_ENABLE_INFERENCE_V1_GENERATE",
        True,
        "Serve the endpoints of the vLLM format; off: they are a 404, its other routes are served",
    )

    @property
    def generate_switches(self) -> Mapping[str, bool]:
        """Whether the endpoints of a format are served, by the field that says so."""
        return {
            "sglang_enable_generate": self.sglang_enable_generate,
            "vllm_enable_inference_v1_generate": self.vllm_enable_inference_v1_generate,
        }

    @property
    def generate_path(self) -> str:
        """Path of the endpoint whose format ``generate_format`` names."""
        return self.sglang_generate_path

    @property
    def format_paths(self) -> Mapping[str, str]:
        """Paths of the endpoints whose format has a variable of its own, by format."""
        return {"vllm": self.vllm_generate_path}

    metrics_path: Route = setting("DYN_HTTP_SVC_METRICS_PATH", "/metrics", "Path of the Prometheus metrics")
    health_path: Route = setting("DYN_HTTP_SVC_HEALTH_PATH", "/health", "Path of the health report")
    live_path: Route = setting("DYN_HTTP_SVC_LIVE_PATH", "/live", "Path of the liveness report")
    models_path: Route = setting("DYN_HTTP_SVC_MODELS_PATH", "/v1/models", "Path of the list of models")
