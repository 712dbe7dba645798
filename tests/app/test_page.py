"""The page in a real browser. With CROW_SCREENSHOTS=1 each test leaves a picture in docs/screenshots."""

from __future__ import annotations

import base64
import io
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))
from serving import Colours, K, encoded, index_of, paint, running, wait_for

from crow.search.index import Index
from crow.search.store import Row

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = Path("/usr/bin/chromium")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no {CHROMIUM}: apt install chromium"),
]
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "screenshots"


class Page:
    """A tab, with what the tests do again and again."""

    def __init__(self, tab: Any, address: str) -> None:
        self.tab, self.address, self.errors = tab, address, []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on("console", lambda message: self.errors.append(message.text) if "Content Security" in message.text else 0)

    def open(self, query: str = "") -> Page:
        self.tab.goto(f"{self.address}/{query}")
        self.until("document.querySelectorAll('.cell').length > 0")
        return self

    def until(self, script: str, seconds: float = 20) -> None:
        """Wait for a script to be true; Playwright's own waiting needs eval, which the page's policy forbids."""
        for _ in range(int(seconds / 0.05)):
            if self.tab.evaluate(script):
                return
            self.tab.wait_for_timeout(50)
        raise AssertionError(f"never true: {script}; {self.tab.inner_text('body')[:500]} {self.errors}")

    def text(self, selector: str) -> str:
        return self.tab.inner_text(selector)

    def where(self) -> str:
        return self.tab.evaluate("location.search")

    def paths(self) -> list[str]:
        return self.tab.evaluate("[...document.querySelectorAll('.cell > a')].map(a => a.title)")

    def results(self) -> None:
        """Wait until a search is answered."""
        self.until("!!document.querySelector('.cell .score')")

    def shot(self, name: str) -> None:
        """A picture for the documentation, once all photographs on it have arrived."""
        if os.environ.get("CROW_SCREENSHOTS"):
            shown = "(b => b.top < innerHeight && b.bottom > 0 && b.width)(i.getBoundingClientRect())"
            self.until(
                f"!navigator.onLine || [...document.images].filter(i => {shown}).every(i => i.complete && !i.dataset.src)",
                90,
            )
            self.tab.wait_for_timeout(300)
            picture = Image.open(io.BytesIO(self.tab.screenshot())).convert("RGB")
            picture.thumbnail((900, 900), Image.Resampling.LANCZOS)
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            picture.quantize(128, dither=Image.Dither.NONE).save(SCREENSHOTS / f"{name}.png", optimize=True)

    def bring(self, how: str, data: bytes, name: str = "query.jpg", kind: str = "image/jpeg") -> None:
        """Drop or paste a file."""
        code = base64.b64encode(data).decode()
        self.tab.evaluate(
            """async ([how, code, name, kind]) => {
                const bytes = Uint8Array.from(atob(code), (c) => c.charCodeAt(0));
                const carried = new DataTransfer();
                carried.items.add(new File([bytes], name, { type: kind }));
                const event = how === "paste"
                  ? new ClipboardEvent("paste", { clipboardData: carried, bubbles: true, cancelable: true })
                  : new DragEvent(how, { dataTransfer: carried, bubbles: true, cancelable: true });
                document.body.dispatchEvent(event);
            }""",
            [how, code, name, kind],
        )


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    """Photographs and views of them, described by the real network where a documentation picture is wanted."""
    folder = tmp_path_factory.mktemp("page")
    try:
        from crow.app.demo import make_photographs

        make_photographs(folder / "photos")
    except ImportError:
        for i in range(84):
            paint(folder / "photos" / f"{i % 7}" / f"{i}.jpg", i, (320, 200 + 40 * (i % 5)))
    (folder / "photos" / "torn.jpg").write_bytes(encoded(1)[:300])
    describer = None if os.environ.get("CROW_SCREENSHOTS") else Colours()
    with Index.create(folder / "photos.crow", describer=describer, whitening="none") as index:
        index.sync(folder / "photos")
        yield index


@pytest.fixture(scope="module")
def address(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(index, tmp_path_factory.mktemp("thumbnails")) as address:
        yield address


@pytest.fixture
def make(chromium: Any, address: str) -> Iterator[Any]:
    """Open tabs of any kind; no script of the page may have failed."""
    contexts: list[Any] = []
    pages: list[Page] = []

    def opened(at: str = address, **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        contexts.append(context)
        pages.append(Page(context.new_page(), at))
        return pages[-1]

    yield opened
    for context in contexts:
        context.close()
    assert [error for page in pages for error in page.errors] == []


@pytest.fixture
def page(make: Any) -> Page:
    return make()


def number(index: Index, ending: str) -> int:
    return next(s.id for path, s in sorted(index.store.stamps().items()) if path.endswith(ending))


def a_picture(index: Index) -> tuple[int, str]:
    path = sorted(p for p in index.store.stamps() if "chelsea" in p or "/3/" in p)[0]
    return number(index, path), path


def test_the_collection_is_shown_and_a_click_searches(page: Page, index: Index) -> None:
    page.open()
    assert page.text("#heading") == f"{len(index)} pictures"
    page.shot("collection")
    path = page.paths()[3]
    page.tab.click(".cell > a >> nth=3")
    page.results()
    assert path not in page.paths() and page.where() == f"?q={number(index, path)}"
    own = [hit.path for hit in index.search(path, k=6) if hit.path != path]
    assert page.paths()[:5] == own[:5]
    page.shot("results")


@pytest.mark.parametrize("how", ["drop", "paste"])
def test_a_dropped_or_pasted_picture_is_searched_with(page: Page, index: Index, how: str) -> None:
    page.open()
    _, path = a_picture(index)
    data = Path(path).read_bytes()
    if how == "drop":
        page.bring("dragover", data)
        assert page.tab.is_visible("#drop")
        page.shot("drop")
    page.bring(how, data)
    page.results()
    assert not page.tab.is_visible("#drop")
    assert page.paths()[0] == path  # the same picture lies in the collection
    assert page.where().startswith("?q=u")
    page.shot(how + "ped" if how == "drop" else "pasted")
    page.tab.reload()  # the address is enough to come back
    page.results()
    assert page.paths()[0] == path


def test_a_picked_picture_is_searched_with(page: Page, index: Index) -> None:
    page.open()
    page.tab.set_input_files("#file", a_picture(index)[1])
    page.results()
    assert page.paths()[0] == a_picture(index)[1]


def test_a_box_is_drawn_moved_and_resized_by_mouse(page: Page, index: Index) -> None:
    q, path = a_picture(index)
    page.open(f"?q={q}")
    page.results()
    page.until("document.getElementById('picture').naturalWidth > 0")
    stage = page.tab.locator("#picture").bounding_box()
    x, y, w, h = stage["x"], stage["y"], stage["width"], stage["height"]

    def drag(*points: tuple[float, float]) -> list[int]:
        page.tab.mouse.move(x + points[0][0] * w, y + points[0][1] * h)
        page.tab.mouse.down()
        for a, b in points[1:]:
            page.tab.mouse.move(x + a * w, y + b * h, steps=3)
        before = page.where()
        page.tab.mouse.up()
        page.until(f"location.search !== {json.dumps(before)}")
        return [int(v) for v in page.where().split("box=")[1].split(",")]

    row = index.store.rows([q])[0]
    assert row is not None
    size = np.array([row.width, row.height] * 2)
    drawn = drag((0.2, 0.3), (0.6, 0.8))
    np.testing.assert_allclose(drawn / size, [0.2, 0.3, 0.6, 0.8], atol=0.02)
    page.until(f"document.querySelector('.cell > a')?.title === {json.dumps(index.search(path, 1, box=drawn)[0].path)}")
    page.shot("box")
    moved = drag((0.4, 0.5), (0.5, 0.45))
    np.testing.assert_allclose(moved / size, [0.3, 0.25, 0.7, 0.75], atol=0.02)
    resized = drag((0.7, 0.75), (0.9, 0.95))
    np.testing.assert_allclose(resized / size, [0.3, 0.25, 0.9, 0.95], atol=0.02)
    page.tab.click("#whole")
    assert "box" not in page.where() and not page.tab.is_visible("#box")


def test_a_box_is_made_by_keyboard(page: Page, index: Index) -> None:
    q, _ = a_picture(index)
    page.open(f"?q={q}")
    page.results()
    page.until("document.getElementById('picture').naturalWidth > 0")
    page.tab.focus("#draw")
    page.tab.keyboard.press("Enter")
    page.until("location.search.includes('box=')")
    assert page.tab.evaluate("document.activeElement.id") == "box"
    first = page.where()
    for key in ("ArrowLeft", "ArrowLeft", "ArrowUp", "Shift+ArrowRight"):
        page.tab.keyboard.press(key)
    page.until(f"location.search !== {json.dumps(first)}")
    before, after = ([int(v) for v in where.split("box=")[1].split(",")] for where in (first, page.where()))
    assert after[0] < before[0] and after[1] < before[1] and after[2] - after[0] > before[2] - before[0]
    label = page.tab.get_attribute("#box", "aria-label")
    assert f"Box from {after[0]}, {after[1]} to {after[2]}, {after[3]}" in label
    page.shot("box-by-keyboard")
    page.tab.keyboard.press("Delete")
    page.until("!location.search.includes('box=')")


def test_a_box_is_drawn_by_touch(make: Any, index: Index) -> None:
    page = make(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page.open(f"?q={a_picture(index)[0]}")
    page.until("document.getElementById('picture').naturalWidth > 0")
    stage = page.tab.locator("#picture").bounding_box()
    link = page.tab.context.new_cdp_session(page.tab)
    for kind, at in (("touchStart", 0.25), ("touchMove", 0.5), ("touchMove", 0.75), ("touchEnd", None)):
        points = [] if at is None else [{"x": stage["x"] + at * stage["width"], "y": stage["y"] + at * stage["height"]}]
        link.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.until("location.search.includes('box=')")


def test_a_click_shows_why_and_back_leads_back(page: Page, index: Index) -> None:
    q, _ = a_picture(index)
    page.open(f"?q={q}")
    page.results()
    page.tab.click(".cell > a >> nth=1")
    page.until("document.getElementById('detail-why').textContent.includes('split exactly')", 60)
    told = page.tab.evaluate("document.querySelector('#right figcaption').textContent").replace("−", "-")
    cells, constant = (float(part.split()[-1]) for part in told.split(","))
    score = float(page.text("#detail-why").split()[1].rstrip(","))
    assert abs(cells + constant - score) < 0.0021  # three digits are shown
    assert page.tab.is_visible("#left .veil canvas") and page.tab.is_visible("#right .region")
    page.shot("match")
    first = page.text("#detail-path")
    page.tab.keyboard.press("ArrowRight")
    page.until(f"document.getElementById('detail-path').textContent !== {json.dumps(first)}")
    page.tab.click('[data-map="weights"]')
    page.until("document.getElementById('detail-why').textContent.includes('split exactly')", 60)
    page.shot("weights")
    page.tab.keyboard.press("m")
    page.tab.keyboard.press("m")
    page.tab.go_back()
    page.until("!document.getElementById('detail').open")
    assert page.where() == f"?q={q}"
    page.tab.go_forward()
    page.until("document.getElementById('detail').open")
    page.tab.keyboard.press("Escape")
    page.until("!document.getElementById('detail').open")


def test_searches_are_a_trail_that_back_follows(page: Page, index: Index) -> None:
    page.open()
    page.tab.click(".cell > a >> nth=2")
    page.results()
    first = page.where()
    page.tab.click(".cell > a >> nth=0")
    page.until("document.getElementById('detail').open")
    page.tab.keyboard.press("a")  # search with this one too
    page.until("location.search.split('q=').length === 3 && !document.getElementById('detail').open")
    page.results()
    assert page.tab.locator("#others li").count() == 1
    page.shot("several")
    page.tab.locator(".switch").click()
    page.until("location.search.includes('expand=10')")
    for _ in range(3):
        page.tab.go_back()
    page.until(f"location.search === {json.dumps(first)}")
    page.results()
    page.tab.go_back()
    page.until("location.search === '' && !document.querySelector('.cell .score')")


def test_folders_and_dates_filter(page: Page, index: Index) -> None:
    page.open(f"?q={a_picture(index)[0]}")
    page.results()
    page.tab.click("#filters summary")
    page.until("document.getElementById('under').options.length > 3")
    folder = page.tab.evaluate("document.getElementById('under').options[2].value")
    page.shot("filter")
    page.tab.select_option("#under", folder)
    page.until(
        f"[...document.querySelectorAll('.cell > a')].every(a => a.title.startsWith({json.dumps(folder + '/')}))"
    )
    assert page.tab.is_visible("#filtered")
    page.tab.fill("#after", "2031-01-01")
    page.until("document.getElementById('end').textContent.includes('No picture passes the filter')")
    page.tab.click("#unfilter")
    page.results()


def test_the_keyboard_reaches_every_picture(page: Page, index: Index) -> None:
    page.open()
    page.tab.focus(".cell > a")
    seen = set()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "End", "Home"):
        page.tab.keyboard.press(key)
        seen.add(page.tab.evaluate("document.activeElement.parentElement.dataset.at"))
    assert {"0", "1", "2", str(len(index) - 1)} <= seen
    page.tab.keyboard.press("Enter")
    page.results()


def test_copying_a_path(make: Any, index: Index) -> None:
    page = make(permissions=["clipboard-read", "clipboard-write"])
    page.open(f"?q={a_picture(index)[0]}&view={a_picture(index)[0] + 1}")
    page.until("document.getElementById('detail').open")
    page.tab.click("#copy")
    page.until("document.getElementById('copy').innerText === 'Copied'")
    assert page.tab.evaluate("navigator.clipboard.readText()") == page.text("#detail-path")


def test_a_broken_upload_is_told(page: Page) -> None:
    page.open()
    page.bring("drop", b"\xff\xd8\xff this is no picture", "holiday.jpg")
    page.until("!document.getElementById('notice').hidden")
    assert "holiday.jpg cannot be searched with" in page.text("#notice")
    page.shot("broken-upload")
    assert page.tab.locator(".cell").count() > 0


def test_failed_files_are_told_with_their_reasons(page: Page) -> None:
    page.open()
    page.until("!document.getElementById('failed').hidden")
    page.tab.click("#failed")
    assert "torn.jpg" in page.text("#failures dt") and "truncated" in page.text("#failures dd")
    page.shot("failures")


def test_a_server_that_is_gone_is_told_and_found_again(page: Page, index: Index) -> None:
    page.open()
    page.tab.context.set_offline(True)
    page.tab.click(".cell > a >> nth=0")
    page.until("document.getElementById('notice').textContent.includes('does not answer')")
    page.shot("offline")
    page.tab.context.set_offline(False)
    page.until("document.getElementById('notice').hidden")
    page.results()  # what was asked for meanwhile is answered now
    page.until("document.querySelectorAll('.cell.gone').length === 0")


def test_dark_and_phone(make: Any, index: Index) -> None:
    q, _ = a_picture(index)
    dark = make(color_scheme="dark").open(f"?q={q}")
    dark.results()
    ground = dark.tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert max(int(v) for v in ground[4:-1].split(",")) < 40
    dark.shot("dark")
    phone = make(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2)
    phone.open(f"?q={q}")
    phone.results()
    assert phone.tab.evaluate("document.documentElement.scrollWidth") <= 390
    phone.shot("phone")
    phone.tab.click(".cell > a >> nth=0")
    phone.until("document.getElementById('detail-why').textContent.includes('split exactly')", 60)
    assert phone.tab.evaluate("document.getElementById('detail').scrollWidth") <= 390
    for button in ("#with", "#too", "#copy", "#next", "#close"):
        box = phone.tab.locator(button).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] + box["height"] <= 844
    phone.shot("phone-match")


def test_first_results_are_shown_within_100_ms_of_the_answer(page: Page, index: Index) -> None:
    page.tab.add_init_script(
        """new MutationObserver(() => {
            if (!window.shownAt && document.querySelector('.cell .score')) window.shownAt = performance.now();
        }).observe(document, { subtree: true, childList: true });"""
    )
    page.open(f"?q={a_picture(index)[0]}")
    page.results()
    waited = page.tab.evaluate(
        "window.shownAt - performance.getEntriesByType('resource').find(e => e.name.includes('api/v1/search')).responseEnd"
    )
    print(f"first results {waited:.0f} ms after the answer")


def test_no_violation_of_accessibility_rules(make: Any, index: Index) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    q, _ = a_picture(index)
    for scheme in ("light", "dark"):
        page = make(color_scheme=scheme)
        for query, ready in (
            ("", "true"),
            (f"?q={q}&box=20,20,200,200", "!document.getElementById('box').hidden"),
            (f"?q={q}&view={q + 1}", "document.getElementById('detail-why').textContent.includes('split exactly')"),
        ):
            page.open(query)
            page.until(ready, 60)
            if not query:
                page.tab.click("#filters summary")
            found = axe.Axe().run(page.tab).response["violations"]
            assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == []


def test_scrolling_through_five_thousand_results(make: Any, tmp_path: Path) -> None:
    with index_of(tmp_path, 30) as index:
        files = list(index.store.get(index.store.stamps()).values())
        random = np.random.default_rng(0)
        rows = [
            Row(f"{old.path}{i}", random.random(K, np.float32) - 0.3, old.size, old.mtime, old.sha256, 90 + i % 70, 64)
            for i in range(5000)
            for old in [files[i % len(files)]]
        ]
        index.store.upsert(rows)
        for i, row in enumerate(rows):
            os.link(files[i % len(files)].path, row.path)
        with running(index, tmp_path) as address:
            page = make(address)
            page.open("?q=1")
            page.results()
            most, at = 0, 0
            page.tab.evaluate(
                """() => { window.slow = 0; let before = performance.now();
                    const tick = (now) => { slow = Math.max(slow, now - before); before = now; requestAnimationFrame(tick); };
                    requestAnimationFrame(tick); }"""
            )
            for _ in range(2000):
                page.tab.mouse.wheel(0, 4000)
                page.tab.wait_for_timeout(16)
                state = page.tab.evaluate("[...document.querySelectorAll('.cell')].map(c => Number(c.dataset.at))")
                most, at = max(most, len(state)), max(state)
                if at == 5028:
                    break
            worst = page.tab.evaluate("window.slow")
            assert at == 5028  # all but the query itself
            assert most < 250
            print(f"at most {most} pictures in the document, the longest frame {worst:.0f} ms")
            page.shot("five-thousand")


def test_the_page_follows_a_sync(make: Any, tmp_path: Path) -> None:
    with index_of(tmp_path, 6) as index, running(index, tmp_path) as address:
        page = make(address)
        page.open()
        assert page.text("#heading") == "6 pictures"
        paint(tmp_path / "photos" / "new.png", 99)
        thread = threading.Thread(target=lambda: Index.open(index.store.address, Colours()).sync())
        thread.start()
        page.until("document.getElementById('heading').textContent === '7 pictures'")
        page.until("document.getElementById('status').textContent.startsWith('7 pictures')")
        assert page.tab.is_visible("#progress")
        thread.join()
    wait_for(lambda: not thread.is_alive())
