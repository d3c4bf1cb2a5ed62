"""The pages in docs/rules: `python tests/rule_pages.py --write` makes them, `test_rule_pages.py` checks that they are current."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from tieaudit.inspectors.registry import all_rules
from tieaudit.reporters import pages

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs" / "rules"


def reasons() -> dict[str, str]:
    """Per rule in one line why its fixture is at fault and the nearest other one is not."""
    spec = importlib.util.spec_from_file_location("fixtures_make", ROOT / "fixtures" / "make.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {fixture.rule: fixture.why for fixture in module.fixtures()}


def made() -> dict[str, str]:
    """{name of a file: its text}."""
    why = reasons()
    # the names in the table lead to the pages
    table = pages.table(all_rules())
    for rule in all_rules():
        table = table.replace(f"| `{rule.name}` |", f"| [`{rule.name}`]({rule.name}.md) |")
    index = f"# Rules\n\nMade by `make docs` from the rules' docstrings; `tieaudit rules` prints the same.\n\n{table}"
    return {"README.md": index} | {f"{rule.name}.md": pages.page(rule, why.get(rule.name, "")) for rule in all_rules()}


if __name__ == "__main__":
    if "--write" in sys.argv:
        DOCS.mkdir(parents=True, exist_ok=True)
        files = made()
        for old in DOCS.glob("*.md"):
            if old.name not in files:
                old.unlink()
        for name, text in files.items():
            (DOCS / name).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write("\n".join(made().values()))
