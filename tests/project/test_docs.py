"""The pages for users say what the product does. (docs/metrics.md: tests/telemetry/test_metrics.py)"""

from __future__ import annotations

import re
import tomllib
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
PAGES = {page.stem: page for page in (*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*.md")))}
TEXTS = {name: page.read_text() for name, page in PAGES.items()}
CONFIGURATION, README = TEXTS["configuration"], TEXTS["README"]
#: Products that docs/reliability.md measures.
PEERS = {"sglang-router", "smg", "vllm-router", "Dynamo"}


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of the tables in ``page``, headings included."""
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]


def lines_with(start: str, page: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


def section(page: str, title: str) -> str:
    return TEXTS[page].split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", PAGES)
def test_all_that_a_page_leads_to_exists_and_nothing_is_left_of_a_merge(name: str) -> None:
    """Links within the project, and tests in backquotes."""
    page, text = PAGES[name], TEXTS[name]
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [target for target in targets if not (page.parent / target).exists()] == []
    for file, test in re.findall(r"`(tests/[\w/.]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / file).is_file(), file
        source = (ROOT / file).read_text()
        assert not test or re.search(rf"^(async )?def {test}\(", source, re.MULTILINE), f"{file}::{test}"
    assert re.findall(r"^(?:<{7}|={7}|>{7})(?: .*)?$", text, re.MULTILINE) == []


def test_configuration_page_has_each_setting_in_order_with_flag_variable_default_and_meaning() -> None:
    expected = []
    for name, field in Settings.model_fields.items():
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        shown = "" if default in (None, ()) else f"`{default}`"
        expected.append(f"| `{flag_of(name)}` | `{variable_of(field)}` | {shown} | {field.description} |")
    assert lines_with("| `--", CONFIGURATION) == expected
    titles = re.findall(r"\n## ([^\n]+)\n\n\| flag \|", CONFIGURATION)
    assert [f"{title}." for title in titles] == [base.__doc__ for base in reversed(Settings.__bases__)]


def test_errors_page_has_each_code_with_status_source_and_type() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    expected = [
        [f"`{kind.code}`", str(kind.status), kind.source, kind.error_type]
        for kind in kinds
        if issubclass(kind, GatewayError)
    ]
    shown = [row[:4] for row in rows(TEXTS["errors"]) if re.fullmatch(r"`\w+`", row[0])]
    assert sorted(shown) == sorted(expected)


def test_every_field_of_an_access_log_line_has_its_row_in_order() -> None:
    table = CONFIGURATION.split("The access log goes to")[1].split("\n## ")[0]
    named = [name for row in rows(table) for name in re.findall(r"`(\w+)`", row[0])]
    assert named == list(AccessLogLine.__struct_fields__)


def joined_keys(title: str) -> dict[str, str]:
    """Key of the reply -> what it comes from, as the page has it for an engine."""
    table = rows(section("joined-streams", title))
    named = [(name, row[1]) for row in table for name in re.findall(r"`(\w+)`", row[0])]
    assert len({name for name, _ in named}) == len(named)
    return dict(named)


def test_joined_streams_page_has_every_key_of_both_engines_with_what_becomes_of_it() -> None:
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
    keys, rules = joined_keys("SGLang"), {**sglang_rules.TOP, **sglang_rules.META}
    assert keys.keys() == rules.keys()
    assert [name for name, rule in rules.items() if not keys[name].startswith(meanings[rule])] == []
    keys = joined_keys("vLLM")
    assert set(keys) == set(vllm_rules.REPLY)
    assert {name for name, source in keys.items() if source.startswith("**null")} == {
        name for name, rule in vllm_rules.REPLY.items() if rule is vllm_rules.MergeRule.UNSTREAMED
    }


def test_paths_of_the_deployment_page_are_the_gateways() -> None:
    page = TEXTS["deployment"]
    tabled = {path for row in rows(page) for path in re.findall(r"`(/\w+)`", row[0])}
    probed = set(re.findall(r"httpGet: \{path: (/\w+),", page))
    assert len(tabled) >= 5 and len(probed) >= 2
    assert tabled | probed <= set(reserved(Settings()))


def test_readme_has_flags_policies_and_the_version_of_python_that_exist() -> None:
    known = {flag_of(name) for name in Settings.model_fields} | {"--port", "--once"}
    assert set(re.findall(r"`(--[a-z-]+)", README)) <= known
    [row] = lines_with("| `--router-mode`", README)
    assert set(re.findall(r"`(\w+)`", row)) == set(POLICIES)
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert f"Python {needed.removeprefix('>=')} or newer" in README


def test_testing_page_has_each_promise_in_order_with_a_home_of_its_own_and_a_black_box_test() -> None:
    promises = re.findall(r"^\| (P\d+) \| .+\. \| `(\S+::\S+)` \| `(\S+::\S+)` \|$", TEXTS["testing"], re.M)
    assert [name for name, *_ in promises] == [f"P{number}" for number in range(1, 18)]
    assert len({home for _, home, _ in promises}) == len(promises)
    assert [name for name, home, black_box in promises if home == black_box] == []


def test_reliability_page_has_each_case_with_its_report_what_peers_do_and_the_tests_that_hold_it() -> None:
    """No row promises what nothing holds; each file of these tests and each peer's version is named."""
    page = section("reliability", "The field's failures")
    table = rows(page)[2:]
    assert len(table) == 15
    for case, peers, ours, _ in table:
        assert re.search(r"\]\(https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+\)", case)
        assert peers in ("not measured", "the same") or any(peer in peers for peer in PEERS)
        assert ours
    named = [set(re.findall(r"`(test_\w+\.py)`", row[3])) for row in table]
    assert all(named) and all(re.search(rf"{peer} \d+\.\d+", page) for peer in PEERS)
    files = {file.name: file.read_text() for file in ROOT.glob("tests/chaos/test_*.py")}
    assert set().union(*named) == files.keys()
    assert [name for name, text in files.items() if "\nasync def test_" not in text] == []
    others = rows(section("reliability", "Workers that fail, vanish, move or are registered wrongly"))[2:]
    assert others and all(re.search(r"`tests/[\w/]+\.py`", row[2]) for row in others)


def test_every_line_of_the_threat_model_names_a_test() -> None:
    model = rows(section("SECURITY", "What each attacker can reach"))
    lines = [row for row in model if row[-1] != "test" and not row[-1].endswith("-")]
    assert len(lines) > 30
    assert [row for row in lines if not re.fullmatch(r"`tests/\S+`", row[-1])] == []
