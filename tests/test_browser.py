"""The report in a real browser: it loads, tells values, hides lines, zooms, sorts, and asks for nothing.

`make browser-test` installs Debian's Chromium; without it these tests are skipped.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from grokscope.analysis.commands.main import main

sys.path.insert(0, str(Path(__file__).parent / "analysis"))
from chromium import EXECUTABLE, browser
from tiny_run import tiny

pytestmark = pytest.mark.skipif(
    EXECUTABLE is None, reason="no chromium on this machine; `make browser-test` installs it"
)
READ = "[...document.querySelectorAll('.legend output')].map(o => o.textContent)"
READOUT = "document.getElementById('readout').textContent"
KEYS = "document.getElementById('chart').focus()"


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    return written(tmp_path_factory, tiny())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return written(tmp_path_factory, tiny(), tiny(1, analyzed=False))


def written(factory, *runs):
    page = factory.mktemp("page") / "report.html"
    assert main(["report", *map(str, runs), "--out", str(page)]) == 0
    return page


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


def ink(image):
    """Share of pixels that differ from the background."""
    return float((np.abs(image.astype(int) - image[2, 2]).sum(-1) > 30).mean())


def test_it_loads_alone_and_without_a_complaint(one, tab):
    tab.open(one)
    assert tab.errors == []
    assert tab.requests == [one.resolve().as_uri()]
    assert tab.evaluate("document.querySelectorAll('.panel canvas').length") >= 4
    assert tab.evaluate("document.querySelector('h1').textContent") == "tiny-0"
    assert min(tab.evaluate("[...document.images].map(i => i.alt.length)")) > 20
    assert 0.01 < ink(tab.screenshot()) < 0.6


def test_the_canvas_is_not_empty(one, tab):
    tab.open(one)
    x, y, width, height = map(int, tab.box(".panel canvas"))
    assert 0.005 < ink(tab.screenshot()[y : y + height, x : x + width]) < 0.5


def test_pointing_tells_the_values_of_all_lines(one, tab):
    tab.open(one)
    assert set(tab.evaluate(READ)) == {""}
    x, y, width, height = tab.box(".panel .u-over")
    tab.mouse("mouseMoved", x + width - 3, y + height / 2)
    tab.until(f"{READOUT} !== ''")
    step = int(tab.evaluate(READOUT).removeprefix("step "))
    assert 300 < step <= 400
    texts = tab.evaluate(READ)
    assert all(texts)
    assert float(texts[0]) == pytest.approx(tab.evaluate(_value("accuracy", "train", step)), rel=1e-3)


def _value(panel, line, step):
    """JavaScript for the value nearest to a step, from the page's data and not from its chart."""
    return (
        "(() => { const d = JSON.parse(document.getElementById('data').textContent).runs[0].panels"
        f".find(p => p.key === '{panel}').lines.find(l => l.label === '{line}');"
        f"const far = d.steps.map(s => Math.abs(s - {step}));"
        "return d.values[far.indexOf(Math.min(...far))]; })()"
    )


def test_a_name_hides_and_shows_its_line(one, tab):
    tab.open(one)
    button = "button[data-key='loss/train']"
    x, y, width, height = map(int, tab.box(".panel:nth-child(2) .u-over"))
    before = tab.screenshot()[y : y + height, x : x + width]
    tab.click(button)
    assert tab.evaluate(f"document.querySelector(\"{button}\").getAttribute('aria-pressed')") == "false"
    x, y, width, height = map(int, tab.box(".panel:nth-child(2) .u-over"))
    after = tab.screenshot()[y : y + height, x : x + width]
    blue = [[np.abs(image.astype(int) - (0, 0x72, 0xB2)).sum(-1) < 40] for image in (before, after)]
    assert np.sum(blue[0]) > 100
    assert np.sum(blue[1]) == 0
    tab.click(button)
    assert tab.evaluate(f"document.querySelector(\"{button}\").getAttribute('aria-pressed')") == "true"
    assert tab.errors == []


def span(tab):
    """The numbers that label the time axis tell what is shown: read them off the bottom panel's cursor."""
    x, y, width, height = tab.box(".panel:last-of-type .u-over")
    ends = []
    for place in (1, width - 2):
        tab.mouse("mouseMoved", x + place, y + height / 2)
        ends.append(int(tab.evaluate(READOUT).removeprefix("step ")))
    return ends


def test_dragging_zooms_all_panels_and_a_double_click_shows_all(one, tab):
    tab.open(one)
    whole = span(tab)
    x, y, width, height = tab.box(".panel .u-over")
    tab.mouse("mousePressed", x + width * 0.7, y + height / 2, button="left", clickCount=1)
    tab.mouse("mouseMoved", x + width * 0.9, y + height / 2, button="left", buttons=1)
    tab.mouse("mouseReleased", x + width * 0.9, y + height / 2, button="left", clickCount=1)
    near = span(tab)
    assert near[0] > whole[0] + 20
    assert near[1] < whole[1] - 50
    for count in (1, 2):
        tab.mouse("mousePressed", x + width / 2, y + height / 2, button="left", clickCount=count)
        tab.mouse("mouseReleased", x + width / 2, y + height / 2, button="left", clickCount=count)
    assert span(tab) == whole
    assert tab.errors == []


def test_the_keyboard_reads_and_zooms(one, tab):
    tab.open(one)
    tab.evaluate(KEYS)
    read = []
    for key in ("ArrowRight", "ArrowRight", "End", "ArrowLeft", "Home"):
        tab.press(key)
        read.append(int(tab.evaluate(READOUT).removeprefix("step ")))
    assert read[0] == 0
    assert read[0] < read[1] < read[3] < read[2] == 400
    assert read[4] == 0
    whole = span(tab)
    tab.evaluate(KEYS)
    for key in ("End", "+", "+", "+"):
        tab.press(key)
    assert span(tab)[0] > whole[0] + 20
    tab.evaluate(KEYS)
    tab.press("0")
    assert span(tab) == whole
    assert tab.errors == []


def test_a_table_sorts_both_ways_with_what_is_missing_last(two, tab):
    tab.open(two)
    header = "table.sortable th:nth-child(1) button"
    names = "[...document.querySelectorAll('table.sortable tbody th')].map(c => c.textContent)"
    tab.click(header)
    assert tab.evaluate(names) == ["tiny-0", "tiny-1"]
    tab.click(header)
    assert tab.evaluate(names) == ["tiny-1", "tiny-0"]
    assert tab.evaluate("document.querySelector('table.sortable th').ariaSort") == "descending"
    column = tab.evaluate(
        "[...document.querySelectorAll('table.sortable th button')].findIndex("
        "b => b.textContent.startsWith('component 1')) + 1"
    )
    for _ in range(2):  # only tiny-0 was analyzed
        tab.click(f"table.sortable th:nth-child({column}) button")
        assert tab.evaluate(names) == ["tiny-0", "tiny-1"]


def test_runs_are_compared_and_shown_alone(two, tab):
    tab.open(two)
    assert tab.evaluate("document.querySelector('.panel').querySelectorAll('button').length") == 2
    choose(tab, "view", "0")
    labels = "[...document.querySelectorAll('.panel button')].map(b => b.textContent)"
    assert tab.evaluate(labels)[:2] == ["train", "test"]
    choose(tab, "align", "generalized")  # neither run generalized
    assert tab.evaluate("document.querySelectorAll('.panel').length") == 0
    assert "without it" in tab.evaluate("document.querySelector('.time').textContent")
    assert tab.errors == []


def choose(tab, name, value):
    tab.evaluate(
        f"(() => {{ const choice = document.getElementById('{name}'); choice.value = '{value}';"
        "choice.dispatchEvent(new Event('change')); })()"
    )


def styles(tab, selector, name):
    """A computed style of every element that the selector finds."""
    return tab.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => getComputedStyle(e).{name})")


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_needs_no_sideways_scrolling(two, tab, dark):
    tab.open(two, width=360, height=780, mobile=True, dark=dark)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    assert (tab.screenshot()[2, 2].mean() < 100) == dark
    sizes = styles(tab, "p, button, td, th", "fontSize")
    assert min(float(size.removesuffix("px")) for size in sizes) >= 12
    assert tab.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_the_paper(one, tab, dark):
    """WCAG 2.1: contrast of at least 4.5 for all text, in both schemes."""
    tab.open(one, dark=dark)
    paper = rgb(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
    card = rgb(tab.evaluate("getComputedStyle(document.querySelector('article')).backgroundColor"))
    words = "h1, p, .verdict, .lead, .note, summary, figcaption"
    for color in set(styles(tab, words, "color")):
        assert min(contrast(rgb(color), paper), contrast(rgb(color), card)) >= 4.5, color


def rgb(text):
    return np.array([float(part) for part in text.strip("rgba()").split(",")[:3]]) / 255


def contrast(one, other):
    def light(color):
        linear = np.where(color <= 0.03928, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
        return linear @ [0.2126, 0.7152, 0.0722]

    high, low = sorted((light(one), light(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
