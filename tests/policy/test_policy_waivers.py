"""What a model card says of findings: an author's word, shown with its reason, and believed only by who says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders import EMBED, HEAD, folder, matrix, safetensors, tied
from hub_server import Hub
from tieaudit.policy.waivers import MAX_FRONT_MATTER, Card, read

Run = Callable[..., tuple[int, str, str]]
WAIVER = "tieaudit:\n  ignore:\n  - rule: diverged-tie\n    reason: trained apart on purpose\n"


def card(matter: str) -> bytes:
    return f"---\nlicense: mit\ntags:\n- a\n{matter}---\n# Model\n".encode()


def test_a_waiver_by_name_or_code() -> None:
    assert read(card(WAIVER)).waived == {"diverged-tie": "trained apart on purpose"}
    told = read(card("tieaudit: {ignore: [{rule: TIE002, reason: 'one'}, {rule: stale-flag, reason: 2024-01-01}]}\n"))
    assert told == Card(waived={"duplicate-tie": "one", "stale-flag": "2024-01-01"})


@pytest.mark.parametrize(
    "data",
    [b"", b"# tieaudit", b"---\nlicense: mit\n---\n", b"---\ntieaudit: no end\n", b"--- \n---\n",
     card("tieaudit: 3\n"), card("tieaudit:\n"),
     card("tieaudit: {ignore: all}\n"), b"text\n" + card(WAIVER), card("x: tieaudit\n"), b"---\n- tieaudit\n---\n", b"\xff\xfe---"],
)  # fmt: skip
def test_cards_that_waive_nothing(data: bytes) -> None:
    assert read(data) == Card(waived={})


def test_windows_line_ends_and_a_byte_order_mark() -> None:
    assert read(b"\xef\xbb\xbf" + card(WAIVER).replace(b"\n", b"\r\n")).waived == {"diverged-tie": "trained apart on purpose"}


@pytest.mark.parametrize(
    ("matter", "words"),
    [
        ("tieaudit: {ignore: [{rule: TIE, reason: all}]}\n", "TIE is no rule's name or code"),
        ("tieaudit: {ignore: [{rule: tie0, reason: all}]}\n", "tie0 is no rule's name or code"),
        ("tieaudit: {ignore: [{reason: all}]}\n", "None is no rule's name or code"),
        ("tieaudit: {ignore: [{rule: [a, {b: c}], reason: all}]}\n", "['a', {'b': 'c'}] is no rule's name or code"),
        ("tieaudit: {ignore: [diverged-tie]}\n", "diverged-tie is waived without a reason"),
        ("tieaudit: {ignore: [{rule: diverged-tie, reason: ' '}]}\n", "diverged-tie is waived without a reason"),
        ("tieaudit: {ignore: [{rule: diverged-tie, reason: [a]}]}\n", "diverged-tie is waived without a reason"),
        ("tieaudit: {ignore: [{rule: unsafe-pickle, reason: trust me}]}\n", "unsafe-pickle cannot be waived"),
        ("tieaudit: {ignore: [{rule: TIE501, reason: trust me}]}\n", "malformed-file cannot be waived"),
        ("a: &a [1]\ntieaudit: *a\n", "has YAML anchors, which are not followed"),
        ("tieaudit: {a: b\n", "is not YAML (line 5 of the card)"),
        ("tieaudit: \x00\n", "is not YAML"),
        ("tieaudit: " + "[" * 10_000 + "\n", "is nested too deeply or too long"),
        ("tieaudit: [" + "a, " * 20_000 + "]\n", "is nested too deeply or too long"),
        ("tieaudit: {[a]: b, {c: d}: e}\n", "is not YAML (line 5 of the card)"),
    ],
    ids=range(15),
)  # fmt: skip
def test_what_is_not_taken_is_said(matter: str, words: str) -> None:
    told = read(card(matter))
    assert told.waived == {}
    assert told.trouble == (words,)


def test_bytes_that_are_no_text() -> None:
    assert read(b"---\ntieaudit: \xff\n---\n").trouble == ("is not YAML",)


def test_tags_construct_nothing() -> None:
    told = read(card("tieaudit: {ignore: [{rule: diverged-tie, reason: !!python/object/apply:os.system ['exit 1']}]}\n"))
    assert told == Card(waived={}, trouble=("diverged-tie is waived without a reason",))
    assert read(card("x: !!int ''\ny: !!timestamp z\n" + WAIVER)).waived == {"diverged-tie": "trained apart on purpose"}


def test_an_alias_bomb_costs_nothing() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    started = time.process_time()
    assert read(card("\n".join([*lines, WAIVER]))).trouble == ("has YAML anchors, which are not followed",)
    assert time.process_time() - started < 25  # 9^30 elements would take longer than the universe


def test_at_most_a_hundred_waivers_are_read() -> None:
    items = "".join(f"  - {{rule: x{n}, reason: y}}\n" for n in range(500))
    assert len(read(card("tieaudit:\n  ignore:\n" + items)).trouble) == 100


# through the command line


@pytest.fixture
def waived(project: Path) -> Path:
    (project / "models" / "apart" / "README.md").write_bytes(card(WAIVER))
    return project


def test_a_waiver_is_shown_and_counts_only_when_allowed(waived: Path, run: Run) -> None:
    told = run("models/apart")
    assert told.code == 1
    assert "    waived        by the model card: trained apart on purpose (counts all the same without --allow-waivers)\n" in told.out
    assert "  gate" not in told.out
    allowed = run("models/apart", "--allow-waivers")
    assert allowed.code == 0
    assert "TIE001 error diverged-tie" in allowed.out
    assert "    waived        by the model card: trained apart on purpose\n" in allowed.out
    assert allowed.out.endswith("  gate     passes; 1 finding accepted\n")


def test_only_the_users_own_settings_allow_waivers(waived: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (waived / "tieaudit.toml").write_text('[[target]]\nmatch = "models/ap*"\nallow-waivers = true\n')
    assert run("models/apart").code == 0
    assert run("models/apart", "--no-allow-waivers").code == 1
    (waived / "tieaudit.toml").write_text('[[target]]\nmatch = "models/twice"\nallow-waivers = true\n')
    assert run("models/apart").code == 1
    (waived / "tieaudit.toml").write_text("allow-waivers = true\n")
    assert run("models/apart").code == 0
    (waived / "tieaudit.toml").rename(waived / "models" / "apart" / "tieaudit.toml")
    monkeypatch.chdir(waived / "models" / "apart")
    assert run(".").code == 1


def test_a_reason_is_only_text_for_the_terminal(project: Path, run: Run) -> None:
    hostile = 'tieaudit: {ignore: [{rule: diverged-tie, reason: "\\e[2J\\u202e OK"}, {rule: "\\e[31m", reason: x}]}\n'
    (project / "models" / "apart" / "README.md").write_bytes(card(hostile))
    told = run("models/apart")
    assert "by the model card: \\x1b[2J\\u202e OK (counts" in told.out
    assert "  waiver   the model card's waivers: \\x1b[31m is no rule's name or code\n" in told.out
    assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize("kind", ["folder", "link out", "long"])
def test_a_card_that_is_no_card(project: Path, run: Run, kind: str) -> None:
    path = project / "models" / "apart" / "README.md"
    if kind == "folder":
        path.mkdir()
    elif kind == "link out":
        (project / "secret").write_bytes(card(WAIVER))
        path.symlink_to(project / "secret")
    else:
        path.write_bytes(b"---\nx: " + b"y" * MAX_FRONT_MATTER + b"\n" + card(WAIVER)[4:])
    told = run("models/apart", "--allow-waivers")
    assert told.code == 1
    assert told.err == ""


def test_a_card_on_the_hub_is_fetched_only_where_it_changes_something(online: Hub, run: Run, tmp_path: Path) -> None:
    weights = safetensors({EMBED: matrix(1), HEAD: matrix(2)})
    online.add("org/apart", folder(tmp_path / "apart", {"config.json": tied(), "model.safetensors": weights, "README.md": card(WAIVER)}))
    assert run("org/apart").code == 1
    assert not any("README" in request.path for request in online.requests)
    told = run("org/apart", "--allow-waivers")
    assert told.code == 0
    assert "by the model card: trained apart on purpose\n" in told.out
    assert sum("README" in request.path for request in online.requests) >= 1
