"""The HTML page: complete in itself, true to the report, small, and nothing in it that a file's names could become."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from lxml import etree
from lxml import html as lxml_html

import page_reports
from builders import EMBED, HEAD, folder, matrix, safetensors
from tieaudit import Report, audit
from tieaudit.alive import Answer, Live, LiveTie, Sharing, Trial, Tried
from tieaudit.components import Component
from tieaudit.report import Finding, Severity, TensorPlace
from tieaudit.reporters import html
from tieaudit.reporters.page import byte_map, diagram, links, palette, places
from tieaudit.reporters.several import Outcome

TESTS = Path(__file__).parent.parent
CASES = sorted((TESTS / "cases").iterdir())
FIXTURES = sorted((TESTS.parent / "fixtures").glob("*/*/"))
MAX_PAGE = 2_000_000
HEADINGS = ("h1", "h2", "h3", "h4", "h5")


def parsed(page: str) -> Any:
    return lxml_html.document_fromstring(page.encode("utf-8"))


def data(page: str) -> list[dict[str, Any]]:
    return [json.loads(block.text) for block in parsed(page).xpath('//script[@class="map-data"]')]


def names(document: dict[str, Any]) -> list[str]:
    """Of all blocks in order, decoded as the script does it."""
    found = []
    for file in document["files"]:
        flat, at = file[4], 0
        while at < len(flat):
            pieces = document["templates"][document["kinds"][flat[at]][0]].split(byte_map.SLOT)
            numbers = flat[at + 2 : at + 1 + len(pieces)]
            found.append("".join(piece + str(number) for piece, number in zip(pieces, [*numbers, ""], strict=True)))
            at += 1 + len(pieces)
    return found


def check(page: str) -> None:
    """What holds for every page."""
    tree = parsed(page)
    assert page.startswith("<!DOCTYPE html>")
    ids = tree.xpath("//@id")
    assert len(ids) == len(set(ids))
    for attribute in tree.xpath("//@src | //@href | //@action | //@srcset | //@data"):
        assert attribute.startswith(("#", "data:,")), attribute
    assert not tree.xpath("//@style")
    assert not [name for name in tree.xpath("//@*") if getattr(name, "attrname", "").startswith("on")]
    assert {element.tag for element in tree.iter() if isinstance(element.tag, str)} <= ALLOWED
    for reference in (word for ids in tree.xpath("//@aria-labelledby") for word in ids.split()):
        assert reference in ids, reference
    levels = [HEADINGS.index(element.tag) for element in tree.iter(*HEADINGS)]
    assert levels[0] == 0
    assert levels.count(0) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(cell.get("scope") in ("row", "col") for cell in tree.iter("th"))
    policy = tree.xpath('//meta[@http-equiv="Content-Security-Policy"]/@content')[0]
    assert policy.startswith("default-src 'none'; ")
    scripts = [block for block in tree.iter("script") if block.get("type") != "application/json"]
    assert [source(scripts[0].text)] == re.findall(r"script-src '([^']+)'", policy)
    assert len(scripts) == 1
    assert [source(tree.find(".//style").text)] == re.findall(r"style-src '([^']+)'", policy)
    assert len(page.encode("utf-8")) < MAX_PAGE


ALLOWED = set(
    "html head meta title link style body a svg defs pattern rect path g text circle desc header p span button main "
    "article section div h1 h2 h3 h4 h5 "
    "dl dt dd b figure figcaption details summary table thead tbody tr th td caption ul li bdi footer script".split()
)


def source(text: str) -> str:
    return "sha256-" + b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def report_of(path: Path) -> Report:
    return audit(str(path))


@pytest.mark.parametrize("path", [*CASES, *FIXTURES], ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_case_and_fixture_has_a_page(path: Path) -> None:
    report = report_of(path)
    page = html.render(report)
    check(page)
    text = " ".join(parsed(page).find(".//main").text_content().split())
    assert (report.verdict if report.verdict != "note" else "ok").upper() in text
    for finding in report.findings:
        assert finding.code in text
    if report.checkpoint and report.checkpoint.files:
        placed = [tensor for file in report.checkpoint.files for tensor in file.tensors if tensor.nbytes and tensor.file_offset is not None]
        [document] = data(page)
        told = {*names(document), *(name for beside in document["beside"].values() for name in beside)}
        for tensor in placed:
            assert tensor.name in told or any(name.startswith(f"{tensor.name} (") for name in told)


def test_an_empty_report_has_a_page() -> None:
    page = html.render(Report(target="nothing", reason="there is nothing"))
    check(page)
    assert data(page) == []


def test_a_broken_file_has_a_page(tmp_path: Path) -> None:
    page = html.render(audit(str(page_reports.broken(tmp_path))))
    check(page)
    assert data(page) == []
    assert "TIE501" in page


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    report = audit(str(page_reports.copies(tmp_path)))
    assert html.render(report) == html.render(report)
    code = (
        "import sys; from dataclasses import replace; from tieaudit import audit; from tieaudit.report import Cost;"
        "from tieaudit.reporters import html;"
        "sys.stdout.write(html.render(replace(audit(sys.argv[1]), cost=Cost())))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)],
            capture_output=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
        )
        for seed in ("1", "2")
    ]
    assert runs[0].stdout == runs[1].stdout != b""


def test_names_stay_text(tmp_path: Path) -> None:
    report = audit(str(page_reports.hostile(tmp_path)))
    page = html.render(report)
    check(page)
    plain = html.render(audit(str(page_reports.copies(tmp_path / "plain"))))
    tags = [len(list(parsed(text).iter(tag))) for text in (plain, page) for tag in ("script", "img", "base", "title")]
    assert tags[:4] == tags[4:]
    told = names(data(page)[0])
    for name in page_reports.HOSTILE:
        if name.isprintable() and len(name) < 200 and "\u202e" not in name:
            assert name in told
    assert "a\\u202etxt.exe" in told
    assert "x" * 199 + "…" in told
    assert "x" * 300 not in page
    assert not {"\u202e", "\x1b", "\u2028"} & set(page)
    rows = {cell.text_content() for cell in parsed(page).xpath('//th[@scope="row"]')}
    assert page_reports.HOSTILE[0] in rows
    assert "49" not in "".join(told)


def test_what_has_no_utf8_is_written_as_an_escape() -> None:
    page = html.render(page_reports.surrogate())
    check(page)
    assert names(data(page)[0]) == ["model.\\udcff.weight"]
    assert "sur\\udc80rogate" in page


def test_hostile_target_and_messages() -> None:
    evil = "<img src=x onerror=alert(1)>"
    finding = Finding(code="TIE201", rule="duplicate-tensor", severity=Severity.WARNING, message=evil, cause=evil, fix=evil,
                      tensors=(TensorPlace(evil, evil, 3, 4), TensorPlace(evil + "2", evil, None, 4)))  # fmt: skip
    page = html.render(Report(target=evil, findings=(finding,), formats=(evil,), files=((evil, 8),), revision=evil))
    check(page)
    assert not parsed(page).xpath("//img")


def test_offsets_and_sizes_are_those_of_the_file(tmp_path: Path) -> None:
    report = audit(str(page_reports.copies(tmp_path)))
    [document] = data(html.render(report))
    [(name, nbytes, form, unplaced, flat)] = document["files"]
    assert (name, nbytes, form, unplaced) == ("model.safetensors", (tmp_path / "model.safetensors").stat().st_size, "safetensors", 0)
    assert names(document) == [EMBED, HEAD, "model.layers.0.mlp.up_proj.weight", "model.norm.weight"]
    assert flat[1] == report.checkpoint.files[0].tensors[0].file_offset
    assert [document["kinds"][kind][5] for kind in (flat[0], flat[2], flat[4], flat[7])] == [1024, 1024, 1024, 32]
    assert [document["kinds"][flat[4]][4], flat[6]] == [0, 0]  # the layer is the first number of its name, and 0
    assert document["links"] == [["A", "warning", "=", "TIE002 duplicate-tie", [0, 1]]]
    assert document["whole"] is True


def test_blocks_of_a_file_are_disjoint_and_cover_what_tensors_cover() -> None:
    for path in (*CASES, *FIXTURES):
        report = report_of(path)
        for one in places.files(report):
            at = 0
            for block in one.blocks:
                assert at <= block.begin < block.end <= one.nbytes, (path, one.name)
                at = block.end


def test_dead_bytes_are_blocks() -> None:
    report = report_of(TESTS / "cases" / "warn_oversize_view")
    [one] = [one for one in places.files(report) if one.blocks]
    shares = dict(one.shares())
    [wasted] = [finding.wasted_bytes for finding in report.findings]
    assert shares[Component.DEAD] == wasted


def test_copies_of_a_tie_are_told_apart(tmp_path: Path) -> None:
    report = page_reports.bart(tmp_path)
    [tie] = report.ties
    drawn = diagram.picture(tie, report, links.tone(tie, report.findings))
    signs = {matrix.names: (matrix.sign, matrix.tone) for matrix in drawn.matrices}
    assert signs == {
        ("model.shared.weight",): ("", "ok"),
        ("lm_head.weight",): ("≠", "error"),
        ("model.decoder.embed_tokens.weight",): ("=", "warning"),
        ("model.encoder.embed_tokens.weight",): ("=", "warning"),
    }
    assert "matrix 2 differs from the first" in diagram.in_words(drawn)


def test_a_healthy_tie_points_both_names_at_one_matrix() -> None:
    report = report_of(TESTS / "cases" / "ok_tied_no_head")
    drawn = diagram.picture(report.ties[0], report, "ok")
    assert drawn.reads == {EMBED: 0, HEAD: 0}
    assert drawn.should == {}
    assert len(drawn.matrices) == 1
    assert drawn.matrices[0].tone == "ok"


def test_a_head_that_is_not_stored_points_at_nothing() -> None:
    report = report_of(TESTS / "cases" / "err_head_missing")
    drawn = diagram.picture(report.ties[0], report, links.tone(report.ties[0], report.findings))
    assert drawn.reads == {EMBED: 0, HEAD: None}
    assert (drawn.tone, drawn.matrices[0].tone) == ("error", "ok")
    assert "lm_head.weight is read from nothing" in diagram.in_words(drawn)


def test_70_000_tensors_fit_with_every_name() -> None:
    report = page_reports.many()
    page = html.render(report)
    check(page)
    [document] = data(page)
    told = names(document)
    assert len(told) == page_reports.LAYERS * page_reports.EXPERTS * 3 == 70_272
    assert told[0] == "model.layers.0.mlp.experts.0.gate_proj.weight"
    assert told[-1] == "model.layers.60.mlp.experts.383.down_proj.weight"
    assert document["whole"] is True


def test_what_does_not_fit_is_merged_and_says_so() -> None:
    report = page_reports.many()
    maps = places.files(report)
    document = json.loads(byte_map.data(maps, (), 30_000))
    assert document["whole"] is False
    assert len(json.dumps(document)) < 60_000
    told = names(document)
    assert told[0] == "1,134 tensors of model.layers.0"
    for (_, _, _, _, flat), one in zip(document["files"], maps, strict=True):
        kinds = [document["kinds"][kind] for kind in flat[:: 2 + document["templates"][document["kinds"][flat[0]][0]].count(byte_map.SLOT)]]
        assert sum(kind[5] for kind in kinds) == sum(block.end - block.begin for block in one.blocks)


def test_a_page_of_unlike_names_stays_small() -> None:
    """Names that share no template: 40,000 of 150 letters would be 6 MB."""
    report = page_reports.many()
    file = report.checkpoint.files[0]
    tensors = []
    for number in range(40_000):
        word = hashlib.sha256(str(number).encode()).hexdigest().translate(str.maketrans("0123456789", "ghijklmnop")) * 2
        storage = replace(file.tensors[0].storage, ident=word, offset=number * 64, nbytes=64)
        tensors.append(replace(file.tensors[0], name=word, storage=storage, nbytes=64, shape=(32,)))
    big = replace(file, tensors=tuple(tensors), storages=(), nbytes=40_000 * 64)
    edition = replace(report.checkpoint.editions[0], files=(big,))
    page = html.render(replace(report, files=((big.name, big.nbytes),), checkpoint=replace(report.checkpoint, editions=(edition,))))
    check(page)


def test_several_targets_share_a_page(tmp_path: Path) -> None:
    outcomes = [
        Outcome(target="a", report=report_of(CASES[0])),
        Outcome(target="<b>", error="cannot <i>read</i>"),
        Outcome(target="c", report=report_of(CASES[5])),
    ]
    page = html.render_several(outcomes)
    check(page)
    tree = parsed(page)
    rows = tree.xpath('//section[@aria-labelledby="all-h"]//tbody/tr')
    assert [row.find("th").text_content().strip() for row in rows] == [str(CASES[0]), "<b>", str(CASES[5])]
    assert [target[1:] for target in tree.xpath("//tbody//a/@href")] == ["r1", "r3"]
    assert [article.get("id") for article in tree.iter("article")] == ["r1", "r3"]
    assert "cannot <i>read</i>" in rows[1].text_content()


def test_no_targets_and_many_targets() -> None:
    check(html.render_several([]))
    check(html.render_several([Outcome(target=str(number), report=report_of(CASES[number % len(CASES)])) for number in range(60)]))


def luminance(colour: str) -> float:
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_enough_in_both_themes(theme: str) -> None:
    tone: Callable[[str], str] = lambda name: getattr(palette.GROUND[name], theme)  # noqa: E731
    for word in ("ink", "soft", "link", "error", "warning", "note", "ok"):
        for ground in ("paper", "card"):
            assert contrast(tone(word), tone(ground)) >= 4.5, (word, ground)
    for word in ("error", "warning", "note", "ok"):
        assert contrast(tone(word), tone(f"{word}-wash")) >= 4.5, word
        assert contrast(tone("ink"), tone(f"{word}-wash")) >= 4.5, word
    assert contrast(tone("edge"), tone("paper")) >= 3
    for what, look in palette.LOOKS.items():
        if what is not Component.DEAD:
            assert contrast(getattr(look.fill, theme), tone("on-fill")) >= 4.5, what
        assert contrast(getattr(look.fill, theme), tone("paper")) >= 3, what


def test_every_component_has_a_look_of_its_own() -> None:
    assert set(palette.LOOKS) == set(Component)
    assert len({look.letter for look in palette.LOOKS.values()}) == len(Component)
    fills = {(look.fill, look.strokes) for look in palette.LOOKS.values()}
    assert len(fills) == len(Component)
    etree.fromstring(str(palette.patterns()))


def test_compressed_tensors_are_counted_and_not_drawn(tmp_path: Path) -> None:
    import numpy as np

    path = folder(tmp_path, {"config.json": b"{}"}) / "weights.npz"
    np.savez_compressed(path, **{EMBED: matrix(1), "b": matrix(2)})
    page = html.render(audit(str(path)))
    check(page)
    [document] = data(page)
    assert [(file[0], file[3], file[4]) for file in document["files"]] == [("weights.npz", 2, [])]
    assert "2 tensors do not lie open in the file" in page


def test_jinja_is_imported_only_for_the_page() -> None:
    code = "import sys, tieaudit.cli, tieaudit.reporters.terminal, tieaudit.reporters.json, tieaudit.stages; print('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_the_page_of_safetensors_bytes(tmp_path: Path) -> None:
    """A live part is absent where nothing was loaded."""
    report = audit(str(folder(tmp_path, {"model.safetensors": safetensors({EMBED: matrix(1)})})))
    assert "In memory" not in html.render(report)


def test_the_live_part_stands_on_the_page() -> None:
    live = Live(
        model="<b>Model</b>",
        moment="loaded by transformers 5",
        names=(),
        ties=(LiveTie(names=(EMBED, HEAD), sharing=Sharing.APART, expected="the config ties them"),),
        tried=(Tried(trial=Trial.LOGITS, held=None, words="no <i>forward</i>"),),
        answers=(Answer(names=(EMBED, HEAD), held=False, words="two matrices", pointers=(16, 32)),),
        missing=("a.weight",),
    )
    page = html.render(Report(target="x", live=live, reason="fine"))
    check(page)
    [section] = parsed(page).xpath('//section[@aria-labelledby="r1-live"]')
    rows = [[cell.text_content() for cell in row] for row in section.xpath(".//tbody/tr")]
    assert rows == [
        [f"{EMBED}, {HEAD}", "✕ contradicted", "two matrices", "0x10, 0x20"],
        [f"{EMBED}, {HEAD}", "✕ broken", "different values", "the config ties them"],
        ["logits", "· not tried", "no <i>forward</i>"],
    ]
    assert "not in the file, so filled with new values: a.weight" in section.text_content()
