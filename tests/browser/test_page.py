"""The HTML page in a real browser: Chromium over its DevTools pipe. Run by `make test-browser`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from devtools import Browser, Page, find
from PIL import Image, ImageStat

import page_reports
from builders import EMBED, HEAD
from tieaudit import Report, audit
from tieaudit.reporters import html
from tieaudit.reporters.several import Outcome

pytestmark = pytest.mark.browser

WIDTHS = {320: 700, 360: 800, 1280: 900}
LONGEST = 10.0  # seconds for a page to load; the true figure is a tenth of one
CASES = Path(__file__).parent.parent / "cases"
TIP = "document.getElementById('tip')"
SHOWN = f"{TIP}.hidden ? '' : {TIP}.innerText"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = find()
    if program is None:
        pytest.fail("no Chromium on PATH: apt-get install chromium, or name one in CHROMIUM")
    browser = Browser(program, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files of pages by name."""
    root = tmp_path_factory.mktemp("pages")
    reports: dict[str, Report] = {
        "copies": audit(str(page_reports.copies(root / "in-copies"))),
        "many": page_reports.many(),
        "healthy": audit(str(CASES / "ok_tied_no_head")),
        "diverged": audit(str(CASES / "err_diverged")),
        "bart": page_reports.bart(root / "in-bart"),
        "broken": audit(str(page_reports.broken(root / "in-broken"))),
        "hostile": audit(str(page_reports.hostile(root / "in-hostile"))),
        "surrogate": page_reports.surrogate(),
        "formats": audit(str(CASES / "info_both_formats")),
        "shards": audit(str(CASES / "warn_index_orphan")),
    }
    made = {name: root / f"{name}.html" for name in (*reports, "several")}
    for name, report in reports.items():
        made[name].write_text(html.render(report), "utf-8")
    outcomes = [Outcome(target=name, report=report) for name, report in reports.items()]
    made["several"].write_text(html.render_several([*outcomes, Outcome(target="gone", error="there is no such folder")]), "utf-8")
    return made


NAMES = ("copies", "many", "healthy", "diverged", "bart", "broken", "hostile", "surrogate", "formats", "shards", "several")


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path]) -> Iterator[Page]:
    """The page of the copies, wide."""
    page = Page(browser, 1280, WIDTHS[1280])
    page.open(pages["copies"])
    yield page
    page.close()


def opening(browser: Browser, path: Path, width: int = 1280) -> Page:
    page = Page(browser, width, WIDTHS[width])
    page.open(path)
    return page


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", NAMES)
def test_every_page_is_drawn_fits_and_asks_for_nothing(
    browser: Browser, pages: dict[str, Path], tmp_path_factory: pytest.TempPathFactory, name: str, width: int, *, dark: bool
) -> None:
    page = Page(browser, width, WIDTHS[width], dark=dark)
    page.open(pages[name])
    picture = tmp_path_factory.getbasetemp() / f"{name}-{width}-{'dark' if dark else 'light'}.png"
    page.picture(picture)
    assert page.troubles() == []
    assert page.requests() in ([pages[name].as_uri()], [pages[name].as_uri(), "data:,"])
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("Math.max(...[...document.querySelectorAll('main *')].filter(e => !e.closest('.scroll'))"
                    ".map(e => e.getBoundingClientRect().right))") <= width  # fmt: skip
    assert page.seconds < LONGEST
    print(f"{name} at {width}: {page.seconds:.2f} s")
    with Image.open(picture) as image:
        assert image.width == width
        grey = image.convert("L")
        assert ImageStat.Stat(grey).stddev[0] > 5
        top = grey.crop((0, 0, width, 60))
        assert (ImageStat.Stat(top).median[0] < 60) is dark
    page.close()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("broken", "several")])
def test_the_script_draws_the_map(browser: Browser, pages: dict[str, Path], name: str) -> None:
    page = opening(browser, pages[name])
    assert page.run("document.querySelectorAll('.static').length") == 0
    assert page.run("[...document.querySelectorAll('.canvas path')].filter(p => p.getBoundingClientRect().width > 0).length") > 0
    page.close()


def test_nothing_of_the_map_is_lost_without_a_script(browser: Browser, pages: dict[str, Path]) -> None:
    page = Page(browser, 1280, 900)
    page.send("Emulation.setScriptExecutionDisabled", value=True)
    page.open_without_script(pages["copies"])
    text = page.text()
    assert "TIE002" in text
    assert "model.safetensors" in text
    assert page.count(".static path") >= 4
    page.close()


def block_at(page: Page, byte: int) -> tuple[float, float]:
    """A point of the window on a byte of the first file, scrolled into view."""
    page.run("document.querySelector('.canvas').scrollIntoView({block: 'center'})")
    page.frame()
    x, y = page.run(
        "(() => { const rows = [...document.querySelectorAll('.canvas .row')]; const size = "
        + str(byte)
        + ";"
        "const total = rows.reduce((sum, row) => sum + row.width.baseVal.value, 0); let left = size / WHOLE * total;"
        "for (const row of rows) { const wide = row.width.baseVal.value; const box = row.getBoundingClientRect();"
        "if (left < wide) return [box.left + left, box.top + box.height / 2]; left -= wide; } })()".replace(
            "WHOLE", "JSON.parse(document.querySelector('.map-data').textContent).files[0][1]"
        )
    )
    return x, y


def test_hovering_tells_what_lies_there_and_lights_its_copy(opened: Page, tmp_path: Path) -> None:
    before = opened.run("document.querySelectorAll('.over .here').length")
    first = audit(str(page_reports.copies(tmp_path))).checkpoint.files[0].tensors[0]
    x, y = block_at(opened, first.file_offset + 500)
    opened.move(x, y)
    opened.frame()
    told = opened.run(SHOWN)
    assert told.split("\n") == [EMBED, "embedding · F32, 32 × 8", "1.02 kB (1,024 bytes)",
                                f"byte {first.file_offset:,} of model.safetensors",
                                f"A = {HEAD} (TIE002 duplicate-tie)"]  # fmt: skip
    assert before == 0 < opened.run("document.querySelectorAll('.over .here').length")
    assert opened.run("document.querySelectorAll('.over .ring.warning').length") >= 2
    opened.move(1, 1)
    opened.frame()
    assert opened.run(SHOWN) == ""


def test_the_keyboard_reaches_everything_and_focus_shows_the_tooltip(opened: Page) -> None:
    # arriving at the map adds the buttons of the block that is chosen then
    wanted = (
        "[...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]"
        ".filter(e => !e.disabled && !e.hidden && e.checkVisibility()).length"
    )
    reached, tips = [], []
    while len(reached) <= opened.run(wanted):
        opened.key("Tab")
        opened.frame()
        reached.append(opened.run(
            "(() => { const e = document.activeElement; e.dataset.n ??= String(Math.random());"
            "return [e.dataset.n, e.getAttribute('role') || e.tagName, getComputedStyle(e).outlineStyle,"
            "parseFloat(getComputedStyle(e).outlineWidth)] })()"
        ))  # fmt: skip
        tips.append(opened.run(SHOWN))
    assert len({one[0] for one in reached if one[1] != "BODY"}) == opened.run(wanted)
    assert all(one[2] == "solid" and one[3] >= 2 for one in reached if one[1] != "BODY")
    kinds = {one[1] for one in reached}
    assert {"A", "BUTTON", "INPUT", "SUMMARY", "slider"} <= kinds
    [at] = [number for number, one in enumerate(reached) if one[1] == "slider"]
    assert tips[at].startswith(EMBED)


def test_arrow_keys_go_from_tensor_to_tensor_and_enter_zooms(opened: Page) -> None:
    opened.run("document.querySelector('[role=slider]').focus()")
    said = "document.querySelector('[role=slider]').getAttribute('aria-valuetext')"
    assert opened.run(said).startswith(f"{EMBED}; embedding; F32, 32 × 8")
    opened.key("ArrowRight")
    assert opened.run(said).startswith(f"{HEAD}; head; F32")
    assert opened.run(SHOWN).startswith(HEAD)
    opened.key("ArrowRight")
    assert opened.run("document.querySelector('[role=slider]').getAttribute('aria-valuenow')") == "3"
    opened.key("Enter")
    opened.frame()
    crumbs = "[...document.querySelectorAll('.crumbs button')].map(b => b.textContent)"
    assert opened.run(crumbs) == ["model.safetensors", "model.layers.0"]
    assert opened.run("document.activeElement.getAttribute('role')") == "slider"
    opened.key("Enter")
    opened.frame()
    assert opened.run(crumbs) == ["model.safetensors", "model.layers.0", "model.layers.0.mlp.up_proj.weight"]
    opened.key("Escape")
    opened.key("Escape")
    opened.frame()
    assert opened.run(crumbs) == ["model.safetensors"]


def test_a_tap_opens_the_details(browser: Browser, pages: dict[str, Path], tmp_path: Path) -> None:
    page = Page(browser, 360, 800, touch=True)
    page.open(pages["copies"])
    first = audit(str(page_reports.copies(tmp_path))).checkpoint.files[0].tensors[0]
    x, y = block_at(page, first.file_offset + 200)
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        page.send("Input.dispatchTouchEvent", type=kind, touchPoints=points)
    page.frame()
    page.run("new Promise(done => setTimeout(done, 400))")
    detail = page.run("document.querySelector('.detail').innerText")
    assert EMBED in detail
    assert "F32, 32 × 8" in detail
    assert HEAD in detail
    page.close()


def test_zoom_and_search_of_70_000_tensors(browser: Browser, pages: dict[str, Path]) -> None:
    page = opening(browser, pages["many"])
    assert page.run("document.querySelectorAll('[role=slider]').length") == page_reports.SHARDS
    page.run("document.querySelectorAll('.label .pick')[1].click()")
    crumbs = "[...document.querySelectorAll('.crumbs button')].map(b => b.textContent)"
    assert page.run(crumbs) == ["all 62 files", "model-00002-of-00062.safetensors"]
    assert page.run("document.querySelectorAll('.row').length") == 8
    parts = "[...document.querySelectorAll('.list tbody tr')].map(r => [...r.cells].map(c => c.textContent).slice(0, 2))"
    assert page.run(parts) == [["model.layers.0", "18"], ["model.layers.1", "1,116"]]
    page.run("document.querySelectorAll('.list .pick')[1].click()")
    assert page.run(crumbs)[-1] == "model.layers.1"
    assert page.run("document.querySelectorAll('.list tbody tr').length") == 100
    page.run("[...document.querySelectorAll('.list button')].at(-1).click()")
    assert page.run("document.querySelectorAll('.list tbody tr').length") == 200
    page.run("document.querySelector('.list .pick').click()")
    assert page.run(crumbs)[-1] == "model.layers.1.mlp.experts.0.gate_proj.weight"
    took = page.run(
        "new Promise(done => { const box = document.querySelector('input[type=search]'); box.value = 'layers.60.mlp.experts.383.';"
        "const began = performance.now(); box.dispatchEvent(new Event('input'));"
        "setTimeout(() => requestAnimationFrame(() => done(performance.now() - began - 300)), 300); })"
    )
    assert took < 2000
    assert page.run("document.querySelector('.list caption').textContent").startswith("3 tensors with")
    page.run("document.querySelector('[aria-label=\"Zoom out\"]').click()")
    assert page.troubles() == []
    longest = page.run(
        "new Promise(done => { let most = 0, last = performance.now(), count = 0; const host = document.querySelector('.map');"
        "const step = () => { const now = performance.now(); most = Math.max(most, now - last); last = now;"
        "document.documentElement.style.width = count % 2 ? '' : '900px'; "
        "if (++count < 20) requestAnimationFrame(step); else done(most); };"
        "requestAnimationFrame(step); })"
    )
    print(f"longest frame while resizing: {longest:.0f} ms")
    assert longest < 2000
    page.close()


def test_a_finding_leads_to_its_tensors(opened: Page) -> None:
    opened.run("document.querySelector('.show').click()")
    opened.frame()
    assert opened.run("document.querySelector('.detail .name').textContent") == EMBED
    assert opened.run("document.activeElement.getAttribute('role')") == "slider"
    opened.run("[...document.querySelectorAll('.detail button')].find(b => b.textContent === 'Go to its partner').click()")
    assert opened.run("document.querySelector('.detail .name').textContent") == HEAD


def test_hostile_names_are_text(browser: Browser, pages: dict[str, Path]) -> None:
    page = opening(browser, pages["hostile"])
    page.run("document.querySelector('.list .pick').click()")
    names = page.run("[...document.querySelectorAll('.list th .pick')].map(b => b.textContent)")
    for name in page_reports.HOSTILE[:7]:
        assert name in names
    assert page.run("document.title").startswith("WARNING: ")
    assert page.run("document.querySelectorAll('img, base, body script:not([type])').length") == 1
    for number in range(len(names)):
        page.run(f"document.querySelectorAll('.list th .pick')[{number}].click()")
        page.run("document.querySelector('[role=slider]').focus()")
    assert page.run("document.title").startswith("WARNING: ")
    assert page.troubles() == []
    assert page.requests()[0] == pages["hostile"].as_uri()
    assert {"data:,", pages["hostile"].as_uri()} >= set(page.requests())
    page.close()


def test_the_accessibility_tree_has_landmarks_headings_and_names(opened: Page) -> None:
    nodes = opened.accessible()
    roles: dict[str, list[str]] = {}
    for node in nodes:
        roles.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    for role in ("main", "banner", "contentinfo", "navigation", "region", "article", "figure", "slider", "searchbox", "status"):
        assert role in roles, role
    assert roles["article"][0].startswith("WARNING")
    assert {"Ties", "Findings", "Byte map"} <= set(roles["region"])
    assert roles["slider"] == ["Tensors of model.safetensors"]
    assert roles["searchbox"] == ["Find a tensor"]
    assert {"Zoom in", "Zoom out", "Show A in the byte map"} <= set(roles["button"])
    assert any(name.startswith("Tie: 2 names, 2 stored matrices") for name in roles["image"] if name)
    assert all(name for role in ("button", "link", "slider", "searchbox", "navigation", "region", "image") for name in roles.get(role, []))
    assert {"rowheader", "columnheader"} <= set(roles)
    levels = [
        int(prop["value"]["value"])
        for node in nodes
        if node["role"]["value"] == "heading"
        for prop in node["properties"]
        if prop["name"] == "level"
    ]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


CONTRAST = """
(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = rgb(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg') || !e.checkVisibility() || e.disabled) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const one = light(rgb(getComputedStyle(e).color).slice(0, 3)), two = light(ground(e));
    const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (ratio < 4.5) bad.push([e.tagName, e.className, e.textContent.trim().slice(0, 40), ratio]);
  }
  return bad;
})()
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", ["copies", "diverged", "healthy", "several"])
def test_every_word_has_enough_contrast(browser: Browser, pages: dict[str, Path], name: str, *, dark: bool) -> None:
    page = Page(browser, 1280, 900, dark=dark)
    page.open(pages[name])
    assert page.run(CONTRAST) == []
    page.close()


def test_the_theme_can_be_chosen(opened: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened.run(ground) == "rgb(255, 255, 255)"
    for wanted in ("rgb(255, 255, 255)", "rgb(18, 21, 28)", "rgb(255, 255, 255)"):
        opened.run("document.getElementById('theme').click()")
        assert opened.run(ground) == wanted


def test_what_is_drawn_is_to_scale(opened: Page, tmp_path: Path) -> None:
    """Widths of all rows together are the file; the embedding has its share of them."""
    path = page_reports.copies(tmp_path)
    whole = (path / "model.safetensors").stat().st_size
    drawn = opened.run("[...document.querySelectorAll('.row')].reduce((sum, row) => sum + row.width.baseVal.value, 0)")
    share = opened.run("[...document.querySelectorAll('.row path.f-embedding')].reduce((sum, path) => sum + path.getBBox().width, 0)")
    assert share / drawn == pytest.approx(1024 / whole, rel=0.02)


@pytest.mark.parametrize(("wanted", "seconds"), [("no-preference", "0.12s"), ("reduce", "0s")])
def test_motion_is_reduced_on_request(browser: Browser, pages: dict[str, Path], wanted: str, seconds: str) -> None:
    page = Page(browser, 1280, 900)
    page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": wanted}])
    page.open(pages["copies"])
    assert page.run("[...new Set([...document.querySelectorAll('.ring')].map(e => getComputedStyle(e).transitionDuration))]") == [seconds]
    page.close()


def test_the_policy_stops_what_it_should(opened: Page) -> None:
    """A script that got in would not run: the test of the lock, not of the door."""
    opened.run("(() => { const s = document.createElement('script'); s.textContent = 'window.owned = 1'; document.body.append(s); })()")
    opened.run("(() => { const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x'; document.body.append(i); })()")
    opened.frame()
    assert opened.run("window.owned") is None
    assert len([line for line in opened.troubles() if "Content Security Policy" in line]) == 2
