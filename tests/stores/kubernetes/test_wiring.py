"""Which store the settings describe: in a cluster, beside one, and when they make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.settings import Settings, SettingsError, load_settings
from gateway.stores.kubernetes.access import ACCOUNT, ApiServerAccess, account_namespace
from gateway.stores.kubernetes.pods import PODS
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import ENDPOINT_SLICES
from gateway.wiring.kubernetes_store import access_of, kubernetes_store, selection_of
from gateway.wiring.stores import STORES
from tests.stores.kubernetes.following import Site
from tests.stores.kubernetes.things import pod


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """In a pod: the folder of its service account."""
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


def test_gateway_in_a_cluster_uses_what_its_pod_has(inside: Path) -> None:
    made = settings()
    assert access_of(made, inside) == ApiServerAccess(
        "https://10.96.0.1:6443", inside / "token", inside / "ca.crt"
    )
    selection = selection_of(made, inside)
    assert selection == type(selection)(PODS, "app=engine", "blue", Defaults())


def test_account_is_where_kubernetes_puts_it() -> None:
    assert str(ACCOUNT) == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_cluster_of_ipv6_addresses(inside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
    assert access_of(settings(), inside).server == "https://[fd00::1]:443"


def test_token_of_the_pod_goes_to_its_own_cluster_only(inside: Path) -> None:
    """With a URL, only files that are named with it are used."""
    assert access_of(settings(api_url="https://other:6443"), inside) == ApiServerAccess("https://other:6443")
    named = settings(api_url="https://other:6443", token_file="/t", ca_file="/c")
    assert access_of(named, inside) == ApiServerAccess("https://other:6443", Path("/t"), Path("/c"))


def test_files_can_be_named_in_a_cluster(inside: Path) -> None:
    access = access_of(settings(token_file="/t", ca_file="/c"), inside)
    assert (access.token_file, access.ca_file) == (Path("/t"), Path("/c"))


def test_all_that_can_be_chosen(inside: Path) -> None:
    made = settings(resource="EndpointSlices", namespace="*", port="http", scheme="https")
    selection = selection_of(made, inside)
    assert selection.resource is ENDPOINT_SLICES and selection.namespace is None
    assert selection.defaults == Defaults("http", "https")
    assert selection_of(settings(port="8000", namespace="red"), inside).defaults.port == 8000


def test_namespace_outside_of_a_cluster_is_the_usual_one(tmp_path: Path) -> None:
    assert account_namespace(tmp_path) == "default"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("resource", "services"),
        ("selector", ""),
        ("namespace", "Blue"),
        ("namespace", "a/b"),
        ("namespace", ""),
        ("port", "0"),
        ("port", "65536"),
        ("port", "1" * 5000),
        ("port", "my port"),
        ("scheme", "ftp"),
        ("api_url", "other:6443"),
        ("api_url", "https://me:hunter2@other"),
        ("token_file", ""),
        ("ca_file", ""),
    ],
)
def test_bad_value_is_refused_by_name(inside: Path, name: str, value: str) -> None:
    text = problem(**{name: value})
    assert text.startswith(f"--kubernetes-{name.replace('_', '-')}: ")
    assert "hunter2" not in text


def test_selector_has_to_be_given(inside: Path) -> None:
    """Without one, every pod of the namespace would be a worker."""
    with pytest.raises(SettingsError, match="^DYN_KUBERNETES_SELECTOR: "):
        load_settings({"discovery_backend": "kubernetes"})


def test_server_has_to_be_given_outside_of_a_cluster() -> None:
    assert problem().startswith("DYN_KUBERNETES_API_URL: ")
    assert settings(api_url="http://127.0.0.1:8001").kubernetes_server == "http://127.0.0.1:8001"


def test_token_is_sent_over_https_only() -> None:
    assert problem(api_url="http://other", token_file="/t").startswith("DYN_KUBERNETES_TOKEN_FILE: ")


def test_other_backends_need_none_of_it() -> None:
    assert load_settings({"discovery_backend": "memory"}).kubernetes_server is None


async def test_store_of_the_registry_follows_the_cluster(site: Site) -> None:
    """From settings to a worker, over TLS with the token of the file."""
    site.cluster.put("pods", pod("a"))
    made = settings(
        api_url=site.server.url,
        token_file=str(site.token),
        ca_file=str(site.certificates),
        namespace="default",
    )
    for make in (STORES["kubernetes"], kubernetes_store):
        store = make(made)
        async for change in store.watch():
            assert list(getattr(change, "records", ())) == ["http://10.0.0.1:30000"]
            break
        await store.close()
