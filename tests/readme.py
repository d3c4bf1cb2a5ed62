"""The generated parts of README.md: `python tests/readme.py --write` puts them in, `test_readme.py` checks that they are current."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tieaudit.inspectors.registry import all_rules

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
COST = re.compile(r"read [\d.,]+ \w+ in [\d.]+ s")


def rules() -> str:
    """The table of all rules."""
    rows = [f"| {rule.code} | `{rule.name}` | {rule.severity.value} | {rule.summary} |" for rule in all_rules()]
    return "\n".join(["| code | rule | default | what it finds |", "|---|---|---|---|", *rows])


def report() -> str:
    """The report on the broken model that `make demo` builds; its cost is left as it was measured."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, ROOT / "fixtures" / "demo.py", folder], check=True, capture_output=True)
        done = subprocess.run([sys.executable, "-m", "tieaudit", "broken"], check=False, capture_output=True, text=True, cwd=folder)
    return f"```\n$ tieaudit broken\n{done.stdout.rstrip()}\n```"


PARTS = {"rules": rules, "report": report}


def part(text: str, name: str) -> str:
    """What stands between the marks of a part."""
    match = re.search(rf"<!-- {name} -->\n(.*?)\n?<!-- /{name} -->", text, re.DOTALL)
    assert match, name
    return match[1]


if __name__ == "__main__":
    written = README.read_text(encoding="utf-8")
    for name, make in PARTS.items():
        new = f"<!-- {name} -->\n{make()}\n<!-- /{name} -->"
        written = re.sub(rf"<!-- {name} -->.*?<!-- /{name} -->", lambda _, new=new: new, written, flags=re.DOTALL)
    if "--write" in sys.argv:
        README.write_text(written, encoding="utf-8")
    else:
        sys.stdout.write(written)
