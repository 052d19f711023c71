"""The search page in a real browser, against the HTTP application with real indexes."""

from __future__ import annotations

import contextlib
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from playwright.sync_api import expect, sync_playwright

from data_pipeline import Skill, SkillCorpus
from data_pipeline.sample_library import load_sample_corpus
from serving.auth import token_digest
from serving.backends import LocalBackend
from serving.engine import SearchEngine
from serving.http_app import PAGE, build_http
from serving.index_build import build_index
from serving.settings import ServeSettings

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ATTACK = "<img src=x onerror=\"document.title='attacked'\"><script>document.title='attacked'</script>"
FLAKY = "software/flaky-test-quarantine"
TOKEN = "a-token-of-the-tests-0123456789"

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium here (Debian: apt-get install chromium)")


# -- the files, without a browser -----------------------------------------------------------------------------------------


def test_the_page_has_no_inline_script_or_style_and_loads_nothing_from_elsewhere():
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in PAGE.iterdir()) == ["index.html", "page.css", "page.js"]
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! src=)", html)
    assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,", "page.css", "page.js", "docs", "docs"]
    for name in ("page.css", "page.js"):
        assert "http" not in (PAGE / name).read_text(encoding="utf-8").replace("HTTP", "")


def test_no_text_becomes_html():
    script = (PAGE / "page.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", script)


# -- the browser and the server -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Headless Chromium."""
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextlib.contextmanager
def listening(settings: ServeSettings) -> Iterator[str]:
    """The application's address on a port of its own."""
    app = build_http(settings, LocalBackend(SearchEngine(settings)))
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(timeout=20)


@pytest.fixture(scope="module")
def site(sample_index: Path, model_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Three indexes of the sample library: BM25, an untrained model, and BM25 with a hostile skill."""
    hostile = tmp_path_factory.mktemp("page") / "hostile"
    skill = Skill(f"x/{ATTACK}", ATTACK, ATTACK, ATTACK, {ATTACK: ATTACK})
    build_index(hostile, SkillCorpus([*load_sample_corpus(), skill]), "bm25")
    indexes = {"words": str(sample_index), "tiny": str(model_index), "hostile": str(hostile)}
    with listening(ServeSettings(indexes)) as address:
        yield address


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A tab; an error in the page's script or a breach of the server's Content-Security-Policy fails the test."""
    context = browser.new_context(viewport={"width": 1180, "height": 800})
    context.set_default_timeout(15_000)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield opened
    context.close()
    assert problems == []


@pytest.fixture
def ask(page: Any, site: str) -> Callable[..., None]:
    """Open the page with these parts of an address and wait for the results."""

    def go(parts: str) -> None:
        page.goto(f"{site}/?{parts}")
        page.locator(".column").first.wait_for()

    return go


def names(page: Any, column: int = 0) -> list[str]:
    return page.locator(".column").nth(column).locator(".hit h3").all_inner_texts()


# -- searching ------------------------------------------------------------------------------------------------------------


@needs_browser
def test_a_typed_request_and_enter_show_ranked_skills_with_scores_and_time(page: Any, site: str):
    page.goto(site)
    page.keyboard.press("Tab")  # the link
    page.keyboard.press("Tab")
    page.keyboard.type(load_sample_corpus().get(FLAKY).description)
    page.keyboard.press("Enter")
    page.locator(".hit").first.wait_for()
    assert names(page)[0] == "flaky-test-quarantine"
    assert len(names(page)) == 10
    assert page.locator(".hit").first.locator(".scores dt").all_inner_texts() == ["BM25"]
    assert page.locator(".hit").first.locator(".bar").evaluate("bar => bar.style.width") == "100%"
    assert re.search(r"114 skills · [\d.]+ ms \([\d.]+ ms with the network\)", page.locator(".about").inner_text())


@needs_browser
def test_the_address_keeps_the_search_and_the_back_button_returns_to_it(page: Any, ask: Callable[..., None]):
    ask("q=a+flaky+test&left=tiny&k=3&hybrid=1&domain=software")
    assert page.locator("#query").input_value() == "a flaky test"
    before = names(page)
    assert len(before) == 3
    assert page.locator(".hit").first.locator(".scores dt").all_inner_texts() == ["dense", "BM25", "fused"]
    page.locator("#query").fill("translate subtitles")
    page.locator("#go").click()
    page.wait_for_url("**/?q=translate+subtitles&left=tiny&domain=software&k=3&hybrid=1")
    page.go_back()
    expect(page.locator("#query")).to_have_value("a flaky test")
    expect(page.locator(".hit h3").first).to_have_text(before[0])
    assert names(page) == before


@needs_browser
def test_two_indexes_stand_side_by_side_and_say_where_the_other_has_a_skill(page: Any, ask: Callable[..., None]):
    ask("q=a+flaky+test&right=tiny&k=5")
    assert page.locator(".column h2").all_inner_texts() == ["words", "tiny"]
    left, right = (page.locator(".column").nth(place).bounding_box() for place in (0, 1))
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] < right["x"]
    for rank, name in enumerate(names(page, 0)):
        said = page.locator(".column").first.locator(".hit .id").nth(rank).inner_text()
        other = names(page, 1)
        expected = f"number {other.index(name) + 1} in tiny" if name in other else "not among the 5 of tiny"
        assert said.endswith(expected)


@needs_browser
def test_switches_that_no_chosen_index_supports_are_off(page: Any, ask: Callable[..., None]):
    ask("q=x&hybrid=1&rerank=1")
    assert page.locator("#hybrid").is_disabled()
    assert not page.locator("#hybrid").is_checked()
    page.locator("#left").select_option("tiny")
    assert page.locator("#hybrid").is_enabled()
    assert page.locator("#rerank").is_disabled()


@needs_browser
def test_the_domain_filter_leaves_only_its_skills(page: Any, ask: Callable[..., None]):
    ask("q=a+flaky+test&k=50")
    page.locator("#domain").select_option("finance")
    expect(page.locator(".hit")).to_have_count(13)
    assert all(text.startswith("finance/") for text in page.locator(".hit .id").all_inner_texts())


@needs_browser
def test_a_document_opens_and_closes_by_keyboard_and_the_focus_returns(page: Any, ask: Callable[..., None]):
    ask(f"q={load_sample_corpus().get(FLAKY).description}&k=1")
    page.locator(".hit h3 button").focus()
    page.keyboard.press("Enter")
    page.locator("#reader[open]").wait_for()
    assert page.locator("#reader-body").inner_text() == load_sample_corpus().get(FLAKY).body.rstrip("\n")
    page.keyboard.press("Escape")
    page.locator("#reader[open]").wait_for(state="detached")
    assert page.evaluate("document.activeElement.innerText") == "flaky-test-quarantine"


# -- hostile text ---------------------------------------------------------------------------------------------------------


@needs_browser
def test_html_in_the_request_and_in_a_skill_is_shown_as_text(page: Any, site: str):
    page.goto(f"{site}/?left=hostile&k=3")
    page.locator("#query").fill(ATTACK)
    page.locator("#go").click()
    page.locator(".hit").first.wait_for()
    assert names(page)[0] == ATTACK
    assert page.locator(".description").first.inner_text() == ATTACK
    page.locator(".hit h3 button").first.click()
    page.locator("#reader[open]").wait_for()
    assert page.locator("#reader-body").inner_text() == ATTACK
    assert page.locator("#reader-metadata dd").inner_text() == ATTACK
    assert page.locator("img, main script, dialog script").count() == 0
    assert page.title() == "SkillReason: find a skill"


# -- what goes wrong ------------------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize(
    "status, headers, expected",
    [
        (429, {"Retry-After": "7"}, "Too many requests. Try again in 7 s."),
        (504, {}, "The search took too long and was stopped."),
        (503, {"Retry-After": "1"}, "The server cannot answer just now: said. Try again in 1 s."),
        (500, {}, "Said"),
    ],
)
def test_a_refusal_is_told_in_words(page: Any, site: str, status: int, headers: dict[str, str], expected: str):
    body = '{"error": {"message": "said"}}'
    page.route("**/search", lambda route: route.fulfill(status=status, headers=headers, body=body))
    page.goto(f"{site}/?q=x")
    page.locator("#error").wait_for()
    assert page.locator("#error").inner_text().startswith(expected)
    assert page.locator("#error").get_attribute("role") == "alert"
    assert page.locator("#go").is_enabled()


@needs_browser
def test_without_a_connection_the_page_says_so_and_the_next_search_works(page: Any, site: str):
    page.goto(site)
    page.locator("#left option").first.wait_for(state="attached")
    page.route("**/search", lambda route: route.abort())
    page.locator("#query").fill("a flaky test")
    page.locator("#go").click()
    page.get_by_text("No connection to the server").wait_for()
    page.unroute("**/search")
    page.locator("#go").click()
    page.locator(".hit").first.wait_for()
    assert page.locator("#error").is_hidden()


@needs_browser
def test_what_was_typed_before_the_server_came_up_is_searched(page: Any, site: str):
    page.route("**/indexes", lambda route: route.abort())
    page.goto(site)
    page.get_by_text("No connection to the server").wait_for()
    page.unroute("**/indexes")
    page.locator("#query").fill("a flaky test")
    page.locator("#go").click()
    page.locator(".hit").first.wait_for()
    assert page.url.endswith("?q=a+flaky+test")


@needs_browser
def test_a_server_with_a_token_asks_for_it_and_the_tab_keeps_it(page: Any, sample_index: Path):
    settings = ServeSettings({"default": str(sample_index)}, token_digests=(token_digest(TOKEN),))
    with listening(settings) as address:
        page.goto(f"{address}/?q=a+flaky+test")
        page.get_by_label("Bearer token").fill("wrong-token-of-16-characters")
        page.keyboard.press("Enter")
        page.get_by_text("does not accept this token").wait_for()
        page.get_by_label("Bearer token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.locator(".hit").first.wait_for()
        page.reload()
        page.locator(".hit").first.wait_for()
        assert TOKEN not in page.url
        assert page.evaluate("localStorage.length") == 0


# -- phones, readers ------------------------------------------------------------------------------------------------------


@needs_browser
@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_narrow_window_needs_no_scrolling_sideways(page: Any, ask: Callable[..., None], width: int):
    page.set_viewport_size({"width": width, "height": 700})
    ask("q=a+flaky+test&right=tiny&hybrid=1&k=3")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.locator(".hit h3 button").first.click()
    page.locator("#reader[open]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@needs_browser
def test_every_field_has_a_name_for_screen_readers(page: Any, ask: Callable[..., None]):
    ask("q=a+flaky+test")
    fields = page.locator("#search").locator("textarea, select, input, button").all()
    unnamed = [
        field.get_attribute("id") for field in fields if not field.evaluate("f => f.labels.length || f.innerText")
    ]
    assert len(fields) == 8
    assert unnamed == []


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_the_contrast_that_wcag_asks_for(page: Any, ask: Callable[..., None], scheme: str):
    page.emulate_media(color_scheme=scheme)
    ask("q=a+flaky+test&k=1")

    def luminance(variable: str) -> float:
        """WCAG 2.2, relative luminance of a custom property such as #1f5fbf."""
        value = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('{variable}')").strip()
        channels = [int(value[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    pairs = [
        *((text, back) for text in ("--text", "--muted", "--accent") for back in ("--card", "--bg")),
        ("--on-accent", "--accent"),
        ("--error", "--error-bg"),
    ]
    for text, back in pairs:
        low, high = sorted((luminance(text), luminance(back)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, back)
