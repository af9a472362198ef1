"""The page in a real browser: Debian's chromium, from disk, without network."""

import pytest
import torch

import isingformer as isf
from browsing import (
    PHONE,
    WIDE,
    assert_words_stand_out,
    is_within,
    needs_chromium,
    opening,
    repeated_ids,
    unfold,
    unnamed,
)
from isingformer.explain import Recorder, bottlenecks, explain

pytestmark = needs_chromium


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


@pytest.fixture
def opened(browser, page_file):
    with opening(browser, page_file.as_uri()) as open_:
        yield open_


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=lambda size: str(size["width"]))
def test_nothing_is_wider_than_the_screen(opened, viewport):
    page = opened(viewport)
    unfold(page)
    assert is_within(page, viewport)
    frame = page.get_by_role("group", name="Map of the network")
    wide = frame.evaluate("f => f.scrollWidth > f.clientWidth && f.tabIndex === 0")
    assert wide is (viewport == PHONE)  # what is too wide scrolls in its own frame, and the keyboard reaches it


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=lambda size: str(size["width"]))
def test_words_stand_out_in_light_and_in_dark(opened, viewport):
    assert_words_stand_out(opened, viewport)


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


def test_rows_keep_their_names_when_a_table_is_scrolled(opened):
    page = opened(PHONE)
    table = page.get_by_role("group", name="Layers", exact=True)
    name, last = table.locator("tbody th").first, table.locator("tbody tr").first.locator("td").last
    before = name.bounding_box()["x"], last.bounding_box()["x"]
    table.evaluate("element => { element.scrollLeft = 120 }")
    assert name.bounding_box()["x"] == before[0] and last.bounding_box()["x"] < before[1] - 50


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
        assert unnamed(page, role) == [], role
    assert page.locator("h1").count() == 1
    assert repeated_ids(page) == 0
