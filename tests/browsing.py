"""Pages in a real browser, Debian's chromium; without it, or without playwright, the tests that import this skip."""

import os
import shutil
from contextlib import contextmanager

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium")

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 800}
_CONTRAST = """() => {
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
    if (!own || !e.checkVisibility() || e.classList.contains('mark') || e.localName === 'script') continue;
    const [x, y] = [luminance(rgb(getComputedStyle(e).color)), luminance(behind(e))];
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < worst.ratio) Object.assign(worst, {ratio, text: e.textContent.slice(0, 40), tag: e.localName});
  }
  return worst;
}"""
"""The text with the least contrast; marks of figures, which are drawn in their own colours, are passed over."""


@contextmanager
def launched():
    """A browser; tests take the fixture `browser`."""
    # In a container, chromium's own sandbox cannot be had by root; the page is ours.
    arguments = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@contextmanager
def opening(browser, address, *, offline=True, allowed=()):
    """A function that opens a page; at the end nothing may have gone wrong, and nothing else may have been asked for.

    `allowed`: beginnings of other addresses that the page may ask.
    """
    complaints, asked, contexts = [], [], []

    def open_(viewport=WIDE, scheme="light"):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=offline)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    try:
        yield open_
    finally:
        for context in contexts:
            context.close()
    assert complaints == []
    assert {url for url in asked if not url.startswith(("data:", *allowed))} == {address}


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")


def is_within(page, viewport):
    """Whether nothing is wider than the screen."""
    return page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def worst_contrast(page):
    """The smallest ratio of a text's luminance to that of what lies behind it, with the text."""
    return page.evaluate(_CONTRAST)


def unnamed(page, role):
    """What has a role and no name for those who do not see; None where nothing has the role."""
    named = page.get_by_role(role).evaluate_all(
        "all => all.map(e => [e.outerHTML, e.getAttribute('aria-label') || e.alt || e.labels?.[0]?.innerText ||"
        " e.innerText || e.querySelector('img')?.alt])"
    )
    return [html for html, name in named if not (name or "").strip()] if named else None


def repeated_ids(page):
    ids = page.locator("[id]").evaluate_all("all => all.map(element => element.id)")
    return len(ids) - len(set(ids))


def assert_words_stand_out(opened, viewport):
    """In light and in dark, which must differ, on the page that `opened(viewport, scheme)` opens."""
    backgrounds = set()
    for scheme in ("light", "dark"):
        page = opened(viewport, scheme)
        unfold(page)
        worst = worst_contrast(page)
        assert worst["ratio"] >= 4.5, (scheme, worst)
        backgrounds.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2
