"""The page in a real browser, asked of a real server on this machine."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image

from browsing import PHONE, WIDE, is_within, needs_chromium, opening, repeated_ids, unfold, unnamed, worst_contrast
from explore_serving import serving
from isingformer.explore import Edits, Explorer, pools_of

pytestmark = needs_chromium


@pytest.fixture
def opened(browser, shared_server):
    url = shared_server.url
    own = tuple(url + path for path in ("explore.css", "explore.js", "gallery?", "ask", "fit"))
    with opening(browser, url, offline=False, allowed=own) as open_:

        def ready(*arguments):
            page = open_(*arguments)
            settled(page)
            return page

        yield ready


def settled(page, passes=20):
    page.locator("body:not(.busy) #count").get_by_text(f"T = {passes}", exact=True).wait_for()


def shown(page):
    """The numbers of all classes as the page says them."""
    rows = [re.split(r"\s+", text) for text in page.locator("#bars .number").all_inner_texts()]
    return [(float(mean), float(low), float(high)) for mean, low, _, high in rows]


def expected(run, image, passes=20):
    found = run.predict(image[None], samples=passes, seed=0)
    low, high = found.interval(0.9)
    return torch.stack([found.probs[0], low[0], high[0]], -1).tolist()


def same(page, run, image, passes=20):
    assert np.allclose(shown(page), expected(run, image, passes), atol=6e-4)


def picture(page, place):
    content = page.locator(place).first.get_attribute("src").partition(",")[2]
    with Image.open(io.BytesIO(base64.b64decode(content))) as image:
        return np.asarray(image.convert("L"))


def test_pick_turn_blur_cover_and_grow(opened, run):
    page, held_out, test = opened(), run.validation(), run.data().test
    same(page, run, held_out.x[0])  # the first one is chosen to begin with
    assert page.locator("#truth").inner_text() == f"labelled {int(held_out.y[0])}"

    page.locator("#set").select_option("test")
    page.locator("#label").select_option("7")
    third = torch.nonzero(test.y == 7)[2].item()
    page.get_by_role("button", name=f"7, image {third}", exact=True).click()
    settled(page)
    same(page, run, test.x[third])

    page.get_by_label("Rotate").fill("30")
    settled(page)
    side = {"side": 2, "fill": torch.tensor(run.about["data"]["mean"]).round()}
    same(page, run, Edits(30).apply(test.x[third], **side))
    page.get_by_label("Blur").fill("0.5")
    cell = page.get_by_role("button", name="Cover row 1, column 1")
    cell.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")  # patch 5
    box = page.locator("#cover").bounding_box()
    at = [(box["x"] + box["width"] * x / 8, box["y"] + box["height"] * 7 / 8) for x in (1, 5)]
    page.mouse.move(*at[0])
    page.mouse.down()
    page.mouse.move(*at[1], steps=8)  # patches 12, 13, 14
    page.mouse.up()
    settled(page)
    changed = Edits(30, 0.5, (5, 12, 13, 14)).apply(test.x[third], **side)
    assert np.array_equal(picture(page, "#picture"), changed[0].numpy())
    same(page, run, changed)
    assert re.match(
        r"Row 4, column 3: attention [\d.]+ \(.*\), relevance -?[\d.e-]+ \(", page.locator("#patch").inner_text()
    )

    page.get_by_label("Networks, T").fill("9")
    settled(page, 9)
    same(page, run, changed, passes=9)
    assert page.locator("#course polyline").get_attribute("points").count(",") == 9
    page.get_by_role("button", name="Watch it grow").click()
    page.locator("#count").get_by_text("T = 1", exact=True).wait_for()
    settled(page, 9)
    same(page, run, changed, passes=9)

    page.get_by_role("button", name="Undo all changes").click()
    settled(page, 9)
    same(page, run, test.x[third], passes=9)
    assert page.locator("#cover [aria-pressed=true]").count() == 0
    said = page.get_by_role("status").text_content()
    assert re.fullmatch(r"\d: [\d.]+ \([\d.]+ to [\d.]+\), T = 9", said)


def test_the_maps_follow_the_class_that_is_traced(opened, run):
    page, image = opened(), run.validation().x[0]
    explorer = Explorer(run, pools_of(run))
    for target in (None, 4):
        if target is not None:
            page.locator("#target").select_option(str(target))
            page.locator("#traced").get_by_text(str(target), exact=True).wait_for()
            settled(page)
        question = explorer.question({"image": {"set": "validation", "index": 0}, "passes": 20, "target": target})
        _, seen = explorer.see(question)
        ends = page.locator('[data-tile="relevance-0"] .legend span').all_inner_texts()
        most = float(seen.relevance.mean.abs().max())
        assert [float(end) for end in ends] == pytest.approx([-most, most], rel=6e-3)
        assert page.locator("#bars .traced").count() == 1
    assert np.array_equal(picture(page, '[data-tile="attention-0"] .base'), image[0].numpy())
    assert picture(page, '[data-tile="attention-0"] .heat').shape == (4, 4)


def test_draw_and_upload(opened, run, tmp_path):
    page = opened()
    page.get_by_role("tab", name="Draw").click()
    box = page.locator("#paper").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.1)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.9, steps=5)
    with page.expect_response("**/fit"):
        page.mouse.up()
    page.locator("#truth").get_by_text("labelled").wait_for(state="detached")
    settled(page)
    drawn = picture(page, "#picture")
    assert drawn.shape == (8, 8) and drawn[4, 3:5].min() > 100 and max(drawn[:, :3].max(), drawn[:, 5:].max()) < 10
    same(page, run, torch.from_numpy(drawn.copy())[None])

    page.get_by_role("tab", name="Draw").press("ArrowRight")
    assert page.get_by_role("tab", name="Upload").get_attribute("aria-selected") == "true"
    photo = tmp_path / "photo.jpg"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(photo)
    with page.expect_response("**/fit"):
        page.get_by_label("Choose an image file").set_input_files(photo)
    (image,) = run.read_images([photo], resize=True)
    page.get_by_text("photo.jpg is 50 x 40 RGB.").wait_for()
    settled(page)
    same(page, run, image)

    large = tmp_path / "large.png"
    large.write_bytes(bytes((8 << 20) + 1))
    page.get_by_label("Choose an image file").set_input_files(large)
    page.get_by_role("alert").get_by_text("too large (8.0 MB); expected at most 8 MB").wait_for()
    same(page, run, image)  # what was shown stays


def test_an_answer_that_comes_too_late_is_dropped(opened, run):
    page, held = opened(), []
    page.evaluate("""() => {
      window.truths = [];
      new MutationObserver(() => truths.push(document.getElementById('truth').textContent))
        .observe(document.getElementById('truth'), {childList: true, characterData: true, subtree: true});
    }""")
    page.route("**/ask", lambda route: held.append(route) if not held else route.continue_())
    thumbs = page.locator("#thumbs button")
    with page.expect_request("**/ask"):
        thumbs.nth(1).click()
    thumbs.nth(2).click()  # while the question about the one before is on its way
    answer = held[0].fetch().json()
    held[0].fulfill(json={**answer, "label": "late"})
    page.locator("#truth").get_by_text(f"labelled {int(run.validation().y[2])}").wait_for()
    settled(page)
    assert "labelled late" not in page.evaluate("truths")
    same(page, run, run.validation().x[2])


def test_what_the_server_refuses_is_said_on_the_page(browser, shared_server, tmp_path):
    """By itself: the browser writes a line about the status into its console."""
    text = tmp_path / "no.png"
    text.write_text("no image")
    context = browser.new_context()
    page = context.new_page()
    page.goto(shared_server.url)
    page.get_by_role("tab", name="Upload").click()
    page.get_by_label("Choose an image file").set_input_files(text)
    page.get_by_role("alert").get_by_text("the file is no image that can be read; expected PNG, JPEG").wait_for()
    page.get_by_role("tab", name="Pick").click()
    page.locator("#told").wait_for(state="hidden")
    context.close()


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (PHONE, "dark")], ids=["1280", "375"])
def test_it_fits_the_screen_stands_out_and_has_names(opened, viewport, scheme):
    page = opened(viewport, scheme)
    unfold(page)
    for tab in ("Draw", "Upload", "Pick"):
        page.get_by_role("tab", name=tab).click()
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            worst = worst_contrast(page)
            assert worst["ratio"] >= 4.5, (colours, worst)
        assert is_within(page, viewport)
    for role in ("button", "slider", "combobox", "tab", "heading", "img", "group"):
        assert unnamed(page, role) == [], role
    assert page.locator("h1").count() == 1 and repeated_ids(page) == 0


def test_a_compressed_run_says_that_it_has_no_maps(browser, compact):
    explorer = Explorer(compact, pools_of(compact), most=10)
    with serving(explorer) as server:
        own = tuple(server.url + path for path in ("explore.css", "explore.js", "gallery?", "ask"))
        with opening(browser, server.url, offline=False, allowed=own) as open_:
            page = open_()
            settled(page, 10)
            assert page.get_by_text("This run is compressed").is_visible() and page.locator(".tiles").count() == 0
            same(page, compact, compact.validation().x[0], passes=10)
