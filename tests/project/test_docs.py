"""The pages for users say what the product does. (docs/metrics.md: tests/telemetry/test_metrics.py)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import errors
from gateway.control.system import reserved
from gateway.errors import GatewayError
from gateway.formats.sglang.join import rules as sglang_rules
from gateway.formats.vllm.join import rules as vllm_rules
from gateway.routing.policy import POLICIES
from gateway.settings import Settings, flag_of, variable_of
from gateway.telemetry.access_log_line import AccessLogLine

ROOT = Path(__file__).parents[2]
CONFIGURATION = (ROOT / "docs" / "configuration.md").read_text()
ERRORS = (ROOT / "docs" / "errors.md").read_text()
README = (ROOT / "README.md").read_text()
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "SECURITY.md"]

KINDS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, GatewayError)
}


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of the tables in ``page``."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_has_its_row_with_flag_variable_default_and_meaning(name: str) -> None:
    field = Settings.model_fields[name]
    default = field.default
    if default in (None, ()):
        shown = ""
    else:
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    row = f"| `{flag_of(name)}` | `{variable_of(field)}` | {shown} | {field.description} |"
    assert row in CONFIGURATION.splitlines()


def test_configuration_page_has_the_settings_in_order_and_no_others() -> None:
    documented = re.findall(r"^\| `(--[a-z-]+)` \|", CONFIGURATION, re.MULTILINE)
    assert documented == [flag_of(name) for name in Settings.model_fields]


def test_configuration_page_has_a_part_for_each_section_by_its_name() -> None:
    titles = re.findall(r"\n## ([^\n]+)\n\n\| flag \|", CONFIGURATION)
    assert [f"{title}." for title in titles] == [base.__doc__ for base in reversed(Settings.__bases__)]


@pytest.mark.parametrize("code", KINDS)
def test_every_error_has_its_row_with_status_source_and_type(code: str) -> None:
    kind = KINDS[code]
    assert f"| `{code}` | {kind.status} | {kind.source} | {kind.error_type} | " in ERRORS


def test_errors_page_has_no_code_that_does_not_exist() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \|", ERRORS, re.MULTILINE)) == sorted(KINDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_field_of_an_access_log_line_has_its_row_in_order() -> None:
    table = CONFIGURATION.split("The access log goes to")[1].split("\n## ")[0]
    named = [name for row in rows(table) for name in re.findall(r"`(\w+)`", row[0])]
    assert named == list(AccessLogLine.__struct_fields__)


def joined_keys(title: str) -> dict[str, str]:
    """Key of the reply -> what it comes from, as the page has it for an engine."""
    page = (ROOT / "docs" / "joined-streams.md").read_text()
    section = page.split(f"\n## {title}\n")[1].split("\n## ")[0]
    named = [(name, row[1]) for row in rows(section) for name in re.findall(r"`(\w+)`", row[0])]
    assert len({name for name, _ in named}) == len(named)
    return dict(named)


def test_joined_streams_page_has_every_key_of_sglang_with_what_becomes_of_it() -> None:
    meanings = {
        sglang_rules.MergeRule.APPEND: "all events, one part after another",
        sglang_rules.MergeRule.MOST: "the largest value of all events",
        sglang_rules.MergeRule.LAST: "the latest event that has it",
        sglang_rules.MergeRule.FIRST: "the first event that has it",
        sglang_rules.MergeRule.REPEATED: "complete in each event that has it: the latest of them",
        sglang_rules.MergeRule.TERMINAL: "the sample's last event",
        sglang_rules.MergeRule.MEMBERS: "its members, each as below",
        sglang_rules.MergeRule.PER_INDEX: "**in no reply**",
    }
    keys = joined_keys("SGLang")
    assert keys.keys() == {*sglang_rules.TOP, *sglang_rules.META}
    for name, rule in {**sglang_rules.TOP, **sglang_rules.META}.items():
        assert keys[name].startswith(meanings[rule]), name


def test_joined_streams_page_has_every_key_of_vllm_and_knows_which_are_null() -> None:
    keys = joined_keys("vLLM")
    assert set(keys) == set(vllm_rules.REPLY)
    assert {name for name, source in keys.items() if source.startswith("**null")} == {
        name for name, rule in vllm_rules.REPLY.items() if rule is vllm_rules.MergeRule.UNSTREAMED
    }


def test_paths_of_the_deployment_page_are_the_gateways() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    tabled = {path for row in rows(page) for path in re.findall(r"`(/\w+)`", row[0])}
    probed = set(re.findall(r"httpGet: \{path: (/\w+),", page))
    assert len(tabled) >= 5 and len(probed) >= 2
    assert tabled | probed <= set(reserved(Settings()))


def test_flags_named_in_the_readme_exist() -> None:
    known = {flag_of(name) for name in Settings.model_fields} | {"--port", "--once"}
    assert set(re.findall(r"`(--[a-z-]+)", README)) <= known


def test_readme_lists_the_policies() -> None:
    [row] = [line for line in README.splitlines() if line.startswith("| `--router-mode`")]
    assert set(re.findall(r"`(\w+)`", row)) == set(POLICIES)


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")], ids=lambda page: page.name)
def test_page_holds_nothing_that_a_merge_left(page: Path) -> None:
    assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", page.read_text(), re.MULTILINE) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    for file, name in re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", page.read_text()):
        assert (ROOT / file).is_file(), file
        source = (ROOT / file).read_text()
        assert not name or re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"{file}::{name}"
