"""The report in a real browser: Debian's chromium, from disk, without network."""

import io

import pytest
import torch
from PIL import Image

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
from isingformer.study.figures import charts
from isingformer.study.plan import Plan, StudyData
from isingformer.study.report import write_report
from records import study

pytestmark = needs_chromium


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    records = study(datasets=("mnist", "cifar10"), sizes=(300, 6000), replicas=3)[:-4]
    sets = tuple(StudyData(source=name, sizes=(300, 6000)) for name in ("mnist", "cifar10"))
    methods = ("plain", "dropout", "dropconnect", "ising")
    plan = Plan(name="small", datasets=sets, methods=methods, rates=(0.1, 0.5), replicas=3)
    images = {"mnist": (torch.randint(256, (40, 1, 28, 28), dtype=torch.uint8), torch.arange(40) % 10, "0123456789")}
    drawn = [c for c in charts(records, images) if c.size in (300, None) and c.rate in (0.1, None)]
    return write_report(
        records, tmp_path_factory.mktemp("report"), plan=plan, command="isingformer study x", drawn=drawn
    )


@pytest.fixture
def opened(browser, report):
    with opening(browser, report.as_uri()) as open_:
        yield open_


def column(page, name):
    """The sort values of a column of the first table, as they stand, and how the header says they are sorted."""
    table = page.locator("#tables table").first
    heads = table.locator("thead th").all_inner_texts()
    place = [head.strip() for head in heads].index(name)
    values = table.locator("tbody tr").evaluate_all(f"rows => rows.map(row => row.cells[{place}].dataset.sort)")
    return values, table.locator("thead th").nth(place).get_attribute("aria-sort")


def numbers(values):
    return [float(value) for value in values if value]


def test_a_click_sorts_and_a_second_one_turns_the_order(opened):
    page = opened()
    before, state = column(page, "Accuracy")
    assert state is None and numbers(before) != sorted(numbers(before))
    button = page.locator("#tables table").first.get_by_role("button", name="Accuracy")
    button.click()
    values, state = column(page, "Accuracy")
    assert state == "ascending" and numbers(values) == sorted(numbers(before))
    button.click()
    values, state = column(page, "Accuracy")
    assert state == "descending" and numbers(values) == sorted(numbers(before), reverse=True)
    page.locator("#tables table").first.get_by_role("button", name="Method").click()
    methods, state = column(page, "Method")
    assert state == "ascending" and methods == sorted(methods)
    assert column(page, "Accuracy")[1] is None


def test_the_keyboard_sorts_too(opened):
    page = opened()
    table = page.locator("#tables table").first
    table.get_by_role("button", name="Size").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    focused = page.evaluate("document.activeElement.textContent")
    assert focused not in ("Size", "Method")
    for key, order in (("Enter", "ascending"), ("Space", "descending")):
        page.keyboard.press(key)
        values, state = column(page, focused)
        assert state == order
        assert numbers(values) == sorted(numbers(values), reverse=order == "descending")


def test_what_is_missing_sorts_last_either_way(opened):
    page = opened()
    unfold(page)
    table = page.locator("#tables table", has=page.locator('td[data-sort=""]')).first
    place = table.evaluate("t => t.querySelector('td[data-sort=\"\"]').cellIndex")
    for _ in range(2):
        table.locator("thead th").nth(place).get_by_role("button").click()
        values = table.locator("tbody tr").evaluate_all(f"rows => rows.map(row => row.cells[{place}].dataset.sort)")
        assert values.count("") and all(not value for value in values[-values.count("") :])


@pytest.mark.parametrize("viewport", [WIDE, PHONE, {"width": 320, "height": 700}], ids=lambda size: str(size["width"]))
def test_the_page_never_scrolls_sideways(opened, viewport):
    page = opened(viewport)
    for _ in range(2):
        assert is_within(page, viewport)
        unfold(page)
    assert page.evaluate("scrollTo(500, 0), scrollX") == 0
    if viewport == PHONE:  # what is too wide scrolls in its own frame, and the keyboard reaches it
        frame = page.locator("#tables .scroll").first
        assert frame.evaluate("f => f.scrollWidth > f.clientWidth && f.tabIndex === 0")


@pytest.mark.parametrize("viewport", [WIDE, PHONE], ids=lambda size: str(size["width"]))
def test_words_stand_out_in_light_and_in_dark(opened, viewport):
    assert_words_stand_out(opened, viewport)


def test_every_image_is_there_and_has_words(opened):
    page = opened()
    unfold(page)
    images = page.locator("img").evaluate_all(
        "all => Promise.all(all.map(async image => { await image.decode();"
        " return [image.naturalWidth, image.naturalHeight, image.alt, image.clientWidth] }))"
    )
    assert len(images) >= 8
    assert all(width > 100 and height > 100 and len(alt) > 30 and shown > 100 for width, height, alt, shown in images)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_words_of_figures_stand_out_from_the_page(opened, scheme):
    page = opened(WIDE, scheme)
    image = page.locator("#figures .calibration img").first
    image.scroll_into_view_if_needed()
    image.evaluate("image => image.decode()")
    with Image.open(io.BytesIO(image.screenshot())) as shot:
        grey = shot.convert("L")
    paper = max(grey.getcolors(), key=lambda found: found[0])[1]  # the colour that most pixels have
    darkest, brightest = grey.getextrema()
    assert (paper > 240 and darkest < 70) if scheme == "light" else (paper < 40 and brightest > 215)


def test_links_open_what_they_lead_to_and_folding_works(opened):
    page = opened()
    first = page.locator("#cells details[id]").first
    assert not first.is_visible()
    page.evaluate("id => { location.hash = id }", first.get_attribute("id"))
    first.locator("table").first.wait_for(state="visible")
    figures = page.locator("#figures")
    figures.get_by_role("button", name="close all").click()
    assert figures.locator("details[open]").count() == 0
    figures.get_by_role("button", name="open all").click()
    assert figures.locator("details:not([open])").count() == 0


def test_every_button_link_and_heading_has_a_name(opened):
    page = opened()
    unfold(page)
    for role in ("button", "link", "heading", "columnheader", "group"):
        assert unnamed(page, role) == [], role
    assert page.locator("h1").count() == 1
    assert repeated_ids(page) == 0
