"""The page in a real browser: Debian's chromium, from disk, without network."""

import os
import shutil

import pytest
import torch

import isingformer as isf
from isingformer.explain import Recorder, bottlenecks, explain

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 800}
CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, k) => sum + c * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255, 255];
  };
  const worst = {ratio: 99};
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !e.checkVisibility() || e.localName === 'script') continue;
    const [x, y] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))];
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < worst.ratio) Object.assign(worst, {ratio, text: e.textContent.slice(0, 40), tag: e.localName});
  }
  return worst;
}"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    torch.manual_seed(0)
    model = isf.ViT(image_size=8, channels=1, patch=2, width=16, depth=3, heads=4, mlp=24, classes=10)
    method = isf.attach(model, isf.Ising(delta=0.3), examples=100)
    recorder = Recorder(method, every=1)
    for step in range(5):
        method.steps = 10 * step
        model.head.posterior.drop.fill_(step / 5)
        recorder()
    found = explain(model, torch.randn(4, 1, 8, 8), samples=5)
    return found.write_page(
        tmp_path_factory.mktemp("page") / "page.html", classes=[f"class number {k}" for k in range(10)],
        history=recorder.history, bottlenecks=bottlenecks(model),
    )  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    # In a container, chromium's own sandbox cannot be had by root; the page is ours.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def opened(browser, page_file):
    """Opens the page; at the end nothing may have gone wrong, and nothing may have left it."""
    complaints, asked, contexts = [], [], []

    def open_(viewport=WIDE, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(page_file.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []
    assert {url for url in asked if not url.startswith("data:")} == {page_file.as_uri()}


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=lambda size: str(size["width"]))
def test_nothing_is_wider_than_the_screen(opened, viewport):
    page = opened(viewport)
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    frame = page.get_by_role("group", name="Map of the network")
    wide = frame.evaluate("f => f.scrollWidth > f.clientWidth && f.tabIndex === 0")
    assert wide is (viewport == PHONE)  # what is too wide scrolls in its own frame, and the keyboard reaches it


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=lambda size: str(size["width"]))
def test_words_stand_out_in_light_and_in_dark(opened, viewport):
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = opened(viewport, scheme)
        unfold(page)
        worst = page.evaluate(CONTRAST)
        assert worst["ratio"] >= 4.5, (scheme, worst)
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


def test_every_picture_is_there_and_large_enough(opened):
    page = opened()
    unfold(page)
    images = page.locator("img").evaluate_all(
        "all => Promise.all(all.map(async image => { await image.decode();"
        " return [image.naturalWidth, image.clientWidth, image.clientHeight] }))"
    )
    assert len(images) > 100
    assert all(natural > 0 and width > 60 and height > 20 for natural, width, height in images)


def test_a_map_lies_over_its_image(opened):
    page = opened()
    base, heat = (page.locator(f"#images .tiles .over .{name}").first.bounding_box() for name in ("base", "heat"))
    assert all(abs(base[key] - heat[key]) <= 1 for key in ("x", "y", "width", "height"))


def test_the_colours_can_be_made_weaker(opened):
    page = opened()
    heat = page.locator("#images .tiles .heat").first
    assert heat.evaluate("e => getComputedStyle(e).opacity") == "0.7"
    page.locator("#strength").fill("20")
    assert heat.evaluate("e => getComputedStyle(e).opacity") == "0.2"


def test_the_slider_goes_through_the_training(opened):
    page = opened()
    frame, strip = page.locator("#frame"), page.locator(".strips .line.last img")
    assert page.locator("#step").inner_text() == "40"

    def offset():
        return strip.evaluate("e => e.parentElement.getBoundingClientRect().top - e.getBoundingClientRect().top")

    height = strip.evaluate("e => e.getBoundingClientRect().height")
    assert offset() == pytest.approx(height * 4 / 5, abs=2.5)
    frame.fill("1")
    assert page.locator("#step").inner_text() == "10" and frame.get_attribute("aria-valuetext") == "after step 10"
    assert offset() == pytest.approx(height / 5, abs=2.5)
    frame.focus()
    page.keyboard.press("Home")
    assert page.locator("#step").inner_text() == "0"


def test_only_the_first_images_are_unfolded(opened):
    page = opened()
    assert page.locator("#images > details").count() == 4
    assert page.locator("#images > details[open]").count() == 3


def test_names_for_those_who_do_not_see(opened):
    page = opened()
    unfold(page)
    for role in ("slider", "link", "heading", "columnheader", "group", "img"):
        found = page.get_by_role(role).all()
        named = page.get_by_role(role).evaluate_all(
            "all => all.map(e => e.getAttribute('aria-label') || e.alt || e.labels?.[0]?.innerText || e.innerText)"
        )
        assert found and all((name or "").strip() for name in named), role
    assert page.locator("h1").count() == 1
    ids = page.locator("[id]").evaluate_all("all => all.map(element => element.id)")
    assert len(ids) == len(set(ids))
