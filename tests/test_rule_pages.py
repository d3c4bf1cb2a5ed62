"""The pages in docs/rules are those of the rules of today, and nothing in them is HTML by accident."""

from __future__ import annotations

import re

import pytest
from markdown_it import MarkdownIt

from rule_pages import DOCS, made, reasons
from tieaudit.inspectors.registry import all_rules
from tieaudit.reporters import pages


def test_the_pages_are_current() -> None:
    assert {path.name: path.read_text(encoding="utf-8") for path in DOCS.iterdir()} == made(), "run `make docs`"


def test_every_rule_on_files_tells_of_its_fixture() -> None:
    why = reasons()
    told = {rule.name for rule in all_rules() if "**Example:**" in made()[f"{rule.name}.md"]}
    assert told == set(why)
    # a model in memory is no file, and a change is about two
    others = {rule.name for rule in all_rules() if "TIE801" <= rule.code <= "TIE807" or rule.code.startswith("TIE9")}
    assert {rule.name for rule in all_rules()} - told == others


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)
def test_a_page_says_all_that_the_docstring_says_and_holds_no_html(rule: pages.Rule) -> None:
    text = pages.markdown(rule)
    assert re.sub(r"[\s*]+", " ", text).strip() == re.sub(r"[\s*]+", " ", rule.page).strip()
    tokens = [
        inner for token in MarkdownIt("gfm-like", {"linkify": False}).parse(pages.page(rule)) for inner in (token, *(token.children or ()))
    ]
    assert not [token for token in tokens if token.type.startswith("html")]
    assert sum(token.type == "heading_open" for token in tokens) == 1


def test_parts_of_a_page_are_told_apart() -> None:
    [rule] = [rule for rule in all_rules() if rule.code == "TIE009"]
    labels = [label for label, _ in pages.paragraphs(rule)]
    assert labels == ["", "What it does", "Why is this worth knowing", "Use instead"]
