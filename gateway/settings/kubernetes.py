"""Settings: workers from Kubernetes.

Owns: which objects of which cluster are workers. Must never enter: annotations of an object.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import field_validator, model_validator

from gateway.settings import environment
from gateway.settings.fields import Choice, File, Placeholder, Section, server_url, setting

_DNS_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_LABEL_NAME = r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


class Kubernetes(Section):
    """Workers from Kubernetes."""

    kubernetes_resource: Choice[Literal["pods", "endpointslices"]] = setting(
        "DYN_KUBERNETES_RESOURCE",
        "pods",
        "Kubernetes objects that are the workers: pods, endpointslices",
    )
    kubernetes_selector: str | None = setting(
        "DYN_KUBERNETES_SELECTOR",
        None,
        "Label selector of those objects, as in kubectl; for the slices of a Service: "
        "kubernetes.io/service-name=NAME",
        min_length=1,
    )
    kubernetes_namespace: str | None = setting(
        "DYN_KUBERNETES_NAMESPACE",
        None,
        "Namespace of those objects, or * for all; unset: that of the gateway",
    )
    kubernetes_port: Annotated[str | None, Placeholder("PORT")] = setting(
        "DYN_KUBERNETES_PORT",
        None,
        "Number or name of their port; unset: the only one, or of several the one named http",
    )
    kubernetes_port_label: Annotated[str | None, Placeholder("LABEL")] = setting(
        "DYN_KUBERNETES_PORT_LABEL",
        None,
        "Label of pods with an index that is added to their port, such as apps.kubernetes.io/pod-index, for "
        "pods on the network of their node",
    )
    kubernetes_scheme: Choice[Literal["http", "https"]] = setting(
        "DYN_KUBERNETES_SCHEME", "http", "Scheme of their URLs if they have no annotation for it: http, https"
    )
    kubernetes_api_url: Annotated[str | None, Placeholder("URL")] = setting(
        "DYN_KUBERNETES_API_URL",
        None,
        "URL of the API server; unset: that of the cluster the gateway runs in",
    )
    kubernetes_token_file: File = setting(
        "DYN_KUBERNETES_TOKEN_FILE",
        None,
        "File with the token for the API server, read again regularly; unset: that of the gateway's pod, or "
        "none if an API URL is given",
        min_length=1,
    )
    kubernetes_ca_file: File = setting(
        "DYN_KUBERNETES_CA_FILE",
        None,
        "File with the certificate authorities for the API server; unset: that of the gateway's pod, or "
        "those of the system if an API URL is given",
        min_length=1,
    )

    @field_validator("kubernetes_namespace")
    @classmethod
    def _is_namespace(cls, name: str | None) -> str | None:
        if name not in (None, "*") and re.fullmatch(_DNS_LABEL, name) is None:
            raise ValueError(f"{name!r} is neither the name of a namespace nor *")
        return name

    @field_validator("kubernetes_port")
    @classmethod
    def _is_port(cls, port: str | None) -> str | None:
        if port is not None:
            number = int(port) if re.fullmatch("[0-9]{1,5}", port) else None
            if not (0 < number < 65536 if number is not None else re.fullmatch(_DNS_LABEL, port)):
                raise ValueError(f"{port!r} is neither the number nor the name of a port")
        return port

    @field_validator("kubernetes_port_label")
    @classmethod
    def _is_label(cls, name: str | None) -> str | None:
        if name is not None and re.fullmatch(_LABEL_NAME, name) is None:
            raise ValueError(f"{name!r} is not the name of a label")
        return name

    @model_validator(mode="after")
    def _pods_have_labels(self) -> Self:
        if self.kubernetes_port_label is not None and self.kubernetes_resource != "pods":
            raise ValueError("DYN_KUBERNETES_PORT_LABEL: needs DYN_KUBERNETES_RESOURCE=pods")
        return self

    @field_validator("kubernetes_api_url")
    @classmethod
    def _is_server(cls, url: str | None) -> str | None:
        return None if url is None else server_url(url)

    @property
    def kubernetes_server(self) -> str | None:
        """The URL of the API server: as configured, or of the cluster the process runs in, if any."""
        host = environment.variables().get("KUBERNETES_SERVICE_HOST")
        if self.kubernetes_api_url is not None or not host:
            return self.kubernetes_api_url
        port = environment.variables().get("KUBERNETES_SERVICE_PORT") or "443"
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"
