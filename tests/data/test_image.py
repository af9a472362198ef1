import io
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from damage import damaged, fuzz, refusal
from isingformer.data import DataError
from isingformer.data.folder import find_images, read_image

rng = np.random.default_rng(0)
GREY = rng.integers(0, 256, (6, 5), dtype=np.uint8)
COLOUR = rng.integers(0, 256, (6, 5, 3), dtype=np.uint8)


def read(file, channels=1, size=(6, 5), resize=False):
    return read_image(file, channels=channels, size=size, resize=resize)


def save(file, pixels, **options):
    Image.fromarray(pixels).save(file, **options)
    return file


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif", "a.tiff", "a.pgm", "A.PNG"])
def test_grey_pixels_are_as_saved(tmp_path, name):
    x = read(save(tmp_path / name, GREY))
    assert x.dtype == torch.uint8 and x.shape == (1, 6, 5) and np.array_equal(x[0], GREY)


@pytest.mark.parametrize(("name", "options"), [("a.png", {}), ("a.bmp", {}), ("a.webp", {"lossless": True}),
                                               ("a.tif", {}), ("a.ppm", {})])  # fmt: skip
def test_colour_pixels_are_as_saved(tmp_path, name, options):
    x = read(save(tmp_path / name, COLOUR, **options), channels=3)
    assert x.shape == (3, 6, 5) and x.is_contiguous() and np.array_equal(x.permute(1, 2, 0), COLOUR)


def test_jpeg_is_close(tmp_path):
    smooth = np.add.outer(np.arange(16), np.arange(16)).astype(np.uint8) * 8
    x = read(save(tmp_path / "a.jpg", smooth, quality=95), size=(16, 16))
    assert (x[0].int() - torch.from_numpy(smooth).int()).abs().max() < 8


def test_a_gif_gives_its_first_frame(tmp_path):
    frames = [Image.fromarray(np.full((6, 5), value, np.uint8)) for value in (10, 200)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read(tmp_path / "a.gif", channels=3) == 10).all()


@pytest.mark.parametrize("levels", [2, 256])
def test_a_gif_is_colour_whatever_its_palette(tmp_path, levels):
    """Pillow opens one whose palette is the full grey ramp as grey, others as palette images."""
    ramp = (np.arange(256) % levels).astype(np.uint8).reshape(16, 16)
    x = read(save(tmp_path / "a.gif", ramp), channels=3, size=(16, 16))
    assert np.array_equal(x, np.broadcast_to(ramp, (3, 16, 16)))


def test_one_bit_images_become_black_and_white(tmp_path):
    Image.fromarray(GREY > 127).save(tmp_path / "a.png")
    assert np.array_equal(read(tmp_path / "a.png")[0], np.where(GREY > 127, 255, 0))


def test_a_palette_is_colour(tmp_path):
    Image.fromarray(COLOUR).quantize(8).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.mode == "P"
        expected = np.array(image.convert("RGB"))
    assert np.array_equal(read(tmp_path / "a.png", channels=3).permute(1, 2, 0), expected)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.webp"])
def test_the_orientation_of_a_photo_is_followed(tmp_path, orientation, name):
    """EXIF 2.3, tag 274: where the first row and column of the stored image are to be shown."""
    turned = {
        1: COLOUR,
        2: COLOUR[:, ::-1],
        3: COLOUR[::-1, ::-1],
        4: COLOUR[::-1],
        5: COLOUR.swapaxes(0, 1),
        6: COLOUR.swapaxes(0, 1)[:, ::-1],
        7: COLOUR.swapaxes(0, 1)[::-1, ::-1],
        8: COLOUR.swapaxes(0, 1)[::-1],
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if name.endswith("webp") else {}
    file = save(tmp_path / name, COLOUR, exif=exif, **options)
    assert np.array_equal(read(file, channels=3, size=turned.shape[:2]).permute(1, 2, 0), turned)


@pytest.mark.parametrize("pixels", [GREY.astype(np.uint16) * 100, GREY.astype(np.int32), GREY.astype(np.float32)])
def test_more_than_eight_bits_are_refused(tmp_path, pixels):
    file = save(tmp_path / "a.tif", pixels)
    for resize in (False, True):
        refusal(lambda resize=resize: read(file, resize=resize), file, "has mode", "8-bit")


def transparent(file, alpha):
    Image.fromarray(np.dstack([COLOUR, np.full((6, 5), alpha, np.uint8)])).save(file)
    return file


def test_alpha_is_dropped_where_opaque_and_laid_on_white_only_on_request(tmp_path):
    opaque, clear = transparent(tmp_path / "opaque.png", 255), transparent(tmp_path / "clear.png", 102)
    assert np.array_equal(read(opaque, channels=3).permute(1, 2, 0), COLOUR)
    refusal(lambda: read(clear, channels=3), clear, "5 x 6 RGB with transparency", "--resize")
    x = read(clear, channels=3, resize=True).permute(1, 2, 0)
    assert np.abs(x.numpy() - (0.4 * COLOUR + 0.6 * 255)).max() <= 1


def test_a_transparent_colour_counts_as_transparency(tmp_path):
    save(tmp_path / "a.png", GREY, transparency=int(GREY[2, 3]))
    refusal(lambda: read(tmp_path / "a.png"), "a.png", "grey with transparency")
    assert read(tmp_path / "a.png", resize=True)[0, 2, 3] == 255
    palette = Image.fromarray(COLOUR).quantize(8)
    palette.save(tmp_path / "b.png", transparency=bytes([0] * 8))
    assert (read(tmp_path / "b.png", channels=3, resize=True) == 255).all()


@pytest.mark.parametrize(
    ("size", "channels", "words"), [((28, 28), 1, "28 x 28 grey"), ((5, 6), 3, "6 x 5 RGB"), ((6, 5), 1, "5 x 6 grey")]
)
def test_an_image_that_does_not_fit_the_model_is_refused(tmp_path, size, channels, words):
    file = save(tmp_path / "image.png", COLOUR)
    message = refusal(lambda: read(file, channels, size), file)
    assert message == f"{file} is 5 x 6 RGB; the model reads {words}; --resize converts it"


@pytest.mark.parametrize(("width", "height"), [(80, 40), (40, 80), (40, 40), (20, 10), (8, 4)])
def test_resize_scales_the_shorter_side_and_crops_the_centre(tmp_path, width, height):
    pixels = rng.integers(0, 256, (height, width), dtype=np.uint8)
    x = read(save(tmp_path / "a.png", pixels), size=(10, 10), resize=True)[0]
    factor = 10 / min(width, height)
    columns, rows = round(width * factor), round(height * factor)
    scaled = np.array(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BILINEAR)).astype(int)
    top, left = (rows - 10) // 2, (columns - 10) // 2
    assert np.abs(x.numpy() - scaled[top : top + 10, left : left + 10]).max() <= 1  # rounding


def test_resize_averages_what_it_shrinks(tmp_path):
    stripes = np.tile(np.array([0, 255], np.uint8), (64, 32))  # would alias to one of the two if pixels were picked
    x = read(save(tmp_path / "a.png", stripes), size=(4, 4), resize=True).int()
    assert (x - 127).abs().max() < 10


def test_resize_to_a_shape_that_is_not_square(tmp_path):
    assert read(save(tmp_path / "a.png", COLOUR), channels=1, size=(3, 8), resize=True).shape == (1, 3, 8)


def test_a_long_strip_stays_small(tmp_path):
    file = save(tmp_path / "strip.png", np.zeros((1, 200_000), np.uint8))
    assert read(file, size=(224, 224), resize=True).shape == (1, 224, 224)


def png(width, height, body=b""):
    """A grey PNG with that header, whatever its body."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(50_001, 1000), (10_000, 10_000), (20_000, 20_000), (2**31 - 1, 2**31 - 1)])
def test_bombs_are_refused_by_their_header(tmp_path, size):
    (tmp_path / "bomb.png").write_bytes(png(*size))  # decoding it would be another error: there is nothing in it
    refusal(lambda: read(tmp_path / "bomb.png"), "bomb.png", "too large", "50,000,000 pixels")


def test_a_large_image_within_the_limit_is_decoded(tmp_path):
    (tmp_path / "a.png").write_bytes(png(50_000, 1000))
    refusal(lambda: read(tmp_path / "a.png"), "a.png", "damaged")


def test_a_format_that_is_not_listed_is_refused_under_any_name(tmp_path):
    Image.fromarray(GREY).save(tmp_path / "a.ico")
    (tmp_path / "a.ico").rename(tmp_path / "a.png")
    refusal(lambda: read(tmp_path / "a.png"), "a.png", "no image")


def test_what_is_no_file_is_refused(tmp_path):
    refusal(lambda: read(tmp_path / "none.png"), "none.png", error=FileNotFoundError)
    refusal(lambda: read(tmp_path), tmp_path, "folder")
    (tmp_path / "empty.png").touch()
    refusal(lambda: read(tmp_path / "empty.png"), "empty.png", "0 bytes")
    refusal(lambda: read(tmp_path / "empty.png", channels=4), "4 channels")


def encoded(format, pixels=COLOUR, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_a_cut_image_is_refused(tmp_path, format):
    whole = encoded(format, rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
    for share in (0.1, 0.5, 0.8):
        (tmp_path / "cut.png").write_bytes(whole[: int(len(whole) * share)])
        refusal(lambda: read(tmp_path / "cut.png", channels=3, size=(32, 32)), "cut.png")


@pytest.mark.parametrize("format", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_damaged_images_give_an_image_or_a_data_error(scratch, format):
    exif = Image.Exif()
    exif[0x0112] = 6
    whole = encoded(format, **({"exif": exif} if format in {"PNG", "JPEG", "WEBP", "TIFF"} else {}))
    check_images(scratch, damaged(whole))


def test_any_bytes_give_an_image_or_a_data_error(scratch):
    starts = [
        b"",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"BM",
        b"GIF89a",
        b"RIFF",
        b"II*\0",
        b"MM\0*",
        b"P5 ",
        b"P6\n",
    ]
    check_images(scratch, st.builds(bytes.__add__, st.sampled_from(starts), st.binary(max_size=200)))


def check_images(scratch, contents):
    file = scratch / "any.png"

    @given(contents, st.sampled_from([1, 3]))
    @fuzz
    def check(content, channels):
        file.write_bytes(content)
        try:
            x = read(file, channels, (5, 6), resize=True)
        except DataError as error:
            assert "any.png" in str(error) and len(str(error).splitlines()) == 1
        else:
            assert x.shape == (channels, 5, 6) and x.dtype == torch.uint8

    check()


def test_find_images_expands_folders_in_order(tmp_path):
    for name in ("b/2.png", "b/1.JPG", "a/deep/3.webp", "a/notes.txt", "a/.hidden.png", ".git/4.png", "z.tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [tmp_path / name for name in ("a/deep/3.webp", "b/1.JPG", "b/2.png", "z.tif")]
    assert find_images([tmp_path]) == found
    assert find_images([tmp_path / "z.tif", tmp_path]) == [found[3], *found[:3]]
    assert find_images([tmp_path / "a" / "notes.txt"]) == [tmp_path / "a" / "notes.txt"]  # asked for by name
    assert find_images([]) == []


def test_find_images_refuses_what_is_not_there(tmp_path):
    (tmp_path / "empty").mkdir()
    refusal(lambda: find_images([tmp_path / "none.png"]), "none.png", "does not exist")
    refusal(lambda: find_images([tmp_path / "empty"]), tmp_path / "empty", "no images")


def test_find_images_ends_where_a_link_leads_back(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "a" / "back").symlink_to(tmp_path, target_is_directory=True)
    assert find_images([tmp_path]) == [tmp_path / "a" / "1.png"]
