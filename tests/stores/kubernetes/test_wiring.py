"""The Kubernetes store of the settings: inside of a cluster, outside of one, and invalid settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load_settings
from gateway.stores.kubernetes.access import ApiServerAccess, account_namespace
from gateway.stores.kubernetes.follower import Selection
from gateway.stores.kubernetes.pods import PODS
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import ENDPOINT_SLICES
from gateway.wiring.kubernetes_store import access_of, selection_of


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Simulate a pod; return the folder of its service account."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "namespace").write_text("blue\n")
    return tmp_path


def settings(**given: str) -> Settings:
    return load_settings(
        {"discovery_backend": "kubernetes", "kubernetes_selector": "app=engine"}
        | {f"kubernetes_{name}": value for name, value in given.items()}
    )


def problem(**given: str) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(**given)
    return str(caught.value)


def test_gateway_in_a_cluster_uses_the_service_account(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token goes to its own cluster only; configured files replace those of the pod."""
    server, other = "https://10.96.0.1:6443", "https://other:6443"
    files, named = (inside / "token", inside / "ca.crt"), {"token_file": "/t", "ca_file": "/c"}
    configured = (Path("/t"), Path("/c"))
    assert access_of(settings(), inside) == ApiServerAccess(server, *files)
    assert access_of(settings(**named), inside) == ApiServerAccess(server, *configured)
    assert access_of(settings(api_url=other), inside) == ApiServerAccess(other)
    assert access_of(settings(api_url=other, **named), inside) == ApiServerAccess(other, *configured)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    assert access_of(settings(), inside).server == "https://[fd00::1]:443"


def test_all_settings_of_the_selection(inside: Path) -> None:
    assert selection_of(settings(), inside) == Selection(PODS, "app=engine", "blue", Defaults())
    labelled = Defaults(port_label="apps.kubernetes.io/pod-index")
    assert selection_of(settings(port_label=labelled.port_label or ""), inside).defaults == labelled
    made = settings(resource="EndpointSlices", namespace="*", port="http", scheme="https")
    wanted = Selection(ENDPOINT_SLICES, "app=engine", None, Defaults("http", "https"))
    assert selection_of(made, inside) == wanted
    assert selection_of(settings(port="8000", namespace="red"), inside).defaults.port == 8000
    assert account_namespace(inside / "outside") == "default"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("resource", ("services",)),
        ("selector", ("",)),
        ("namespace", ("Blue", "a/b", "")),
        ("port", ("0", "65536", "1" * 5000, "my port")),
        ("port_label", ("", "a/", "/a", "a b", "A/b", "a" * 64, "a/b/c")),
        ("scheme", ("ftp",)),
        ("api_url", ("other:6443", "https://me:hunter2@other")),
        ("token_file", ("",)),
        ("ca_file", ("",)),
    ],
)
def test_error_of_an_invalid_value_names_the_setting(
    inside: Path, name: str, values: tuple[str, ...]
) -> None:
    for value in values:
        text = problem(**{name: value})
        assert text.startswith(f"--kubernetes-{name.replace('_', '-')}: ")
        assert "hunter2" not in text


def test_label_of_the_port_is_one_of_pods(inside: Path) -> None:
    assert problem(resource="endpointslices", port_label="i").startswith("DYN_KUBERNETES_PORT_LABEL: ")


def test_selector_is_required(inside: Path) -> None:
    """Without one, every pod of the namespace would be a worker."""
    with pytest.raises(SettingsError, match="^DYN_KUBERNETES_SELECTOR: "):
        load_settings({"discovery_backend": "kubernetes"})


def test_url_is_required_outside_of_a_cluster_and_a_token_is_sent_over_https_only() -> None:
    assert problem().startswith("DYN_KUBERNETES_API_URL: ")
    assert settings(api_url="http://127.0.0.1:8001").kubernetes_server == "http://127.0.0.1:8001"
    assert problem(api_url="http://other", token_file="/t").startswith("DYN_KUBERNETES_TOKEN_FILE: ")
