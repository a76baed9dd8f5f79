"""Images as inputs: layout, channels, size and type follow the input. If the shape is ambiguous, an error asks."""

import json
import sys

import numpy as np
import pytest

import graphkit as gk

Image = pytest.importorskip("PIL.Image")

PIXELS = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def seen(call, tmp_path):
    """Return the input that a model of a shape and type gets for an image."""

    def run(shape, dtype, picture, *options):
        path = tmp_path / "net.json"
        x = gk.input("x", shape, dtype=dtype)
        gk.Model({"y": gk.identity(x)}).save(path)
        code, _, err = call("run", path, f"x={picture}", "-o", tmp_path / "out.npz", *options)
        assert code == 0, err
        with np.load(tmp_path / "out.npz") as found:
            return found["y"]

    return run


SCALED = PIXELS.astype(np.float64) / 255


@pytest.mark.parametrize("batch", [[], [1], ["N"]], ids=str)
def test_layouts(seen, photo, batch):
    lead = [1] * len(batch)
    planes = SCALED.transpose(2, 0, 1).reshape(*lead, 3, 6, 8).astype(np.float32)
    np.testing.assert_array_equal(seen([*batch, 3, 6, 8], "float32", photo), planes)
    np.testing.assert_array_equal(seen([*batch, 3, "H", "W"], "float32", photo), planes)
    np.testing.assert_array_equal(
        seen([*batch, 6, 8, 3], "float32", photo), SCALED.reshape(*lead, 6, 8, 3).astype(np.float32)
    )
    np.testing.assert_array_equal(seen([*batch, 6, 8, 3], "uint8", photo), PIXELS.reshape(*lead, 6, 8, 3))
    np.testing.assert_array_equal(seen([*batch, 3, 6, 8], "float16", photo), planes.astype(np.float16))


def test_channels_are_those_of_the_input(seen, photo, tmp_path):
    with Image.open(photo) as picture:
        gray, alpha = np.asarray(picture.convert("L")), np.asarray(picture.convert("RGBA"))
    np.testing.assert_array_equal(seen([1, 1, 6, 8], "uint8", photo)[0, 0], gray)
    np.testing.assert_array_equal(seen([1, 6, 8, 4], "uint8", photo)[0], alpha)
    Image.fromarray(gray).save(tmp_path / "gray.png")
    np.testing.assert_array_equal(seen([1, 6, 8, 3], "uint8", tmp_path / "gray.png")[0], gray[..., None].repeat(3, 2))


def test_the_size_is_that_of_the_input(seen, photo):
    with Image.open(photo) as picture:
        wanted = np.asarray(picture.resize((4, 12), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(seen([1, 12, 4, 3], "uint8", photo)[0], wanted)


def test_a_photo_is_turned_upright(seen, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the scene is the right edge
    Image.fromarray(PIXELS).save(tmp_path / "turned.png", exif=exif)
    np.testing.assert_array_equal(seen([1, 8, 6, 3], "uint8", tmp_path / "turned.png")[0], np.rot90(PIXELS, -1))


def test_normalisation(seen, photo):
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    options = ("--image-mean", "0.485,0.456,0.406", "--image-std", "0.229,0.224,0.225")
    wanted = ((SCALED - mean) / std).astype(np.float32)
    np.testing.assert_allclose(seen([1, 6, 8, 3], "float32", photo, *options)[0], wanted, rtol=1e-6)
    np.testing.assert_array_equal(seen([1, 6, 8, 3], "float32", photo, "--image-scale", "1")[0], PIXELS)
    wanted = (PIXELS - 127.5) / 128
    options = ("--image-scale", "1", "--image-mean", "127.5", "--image-std", "128")
    np.testing.assert_allclose(seen([1, 6, 8, 3], "float32", photo, *options)[0], wanted, rtol=1e-6)


@pytest.mark.parametrize(
    "command",
    [
        ("export", "-o", "out.onnx"),
        ("grad", "--wrt", "x", "--check"),
        ("bench", "--against", "nothing", "--runs", "1"),
        ("verify",),
    ],
    ids=lambda c: c[0],
)
def test_every_command_that_takes_inputs_takes_pictures(call, photo, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    gk.Model({"y": gk.sqrt(gk.abs(gk.input("x", ["N", "C", "H", "W"]) + 2.0))}).save("net.onnx")
    name, *options = command
    code, _, err = call(name, "net.onnx", f"x={photo}", *options)
    assert code == 2
    assert "--image-layout NCHW or NHWC" in err
    code, _, err = call(name, "net.onnx", f"x={photo}", "--image-layout", "NCHW", "--image-mean", "0.5", *options)
    assert code == 0, err


def test_a_layout_that_the_shape_leaves_open(seen, call, photo, tmp_path):
    for shape in (["N", "C", "H", "W"], [1, 3, 8, 3]):
        gk.Model({"y": gk.identity(gk.input("x", shape))}).save(tmp_path / "open.json")
        code, _, err = call("run", tmp_path / "open.json", f"x={photo}")
        assert code == 2
        assert "--image-layout NCHW or NHWC" in err
    assert seen(["N", "C", "H", "W"], "float32", photo, "--image-layout", "NCHW").shape == (1, 3, 6, 8)
    assert seen(["N", "H", "W", "C"], "float32", photo, "--image-layout", "NHWC").shape == (1, 6, 8, 3)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "message"),
    [
        ([4, 3, 6, 8], "float32", [], "one image"),
        ([1, 3, 6, 8], "int64", [], "floats or uint8"),
        ([1, 30], "float32", [], "[N, C, H, W]"),
        ([1, 3, 6, 8], "uint8", ["--image-scale", "1"], "keeps pixels unchanged"),
        ([1, 3, 6, 8], "float32", ["--image-mean", "1,2"], "2 numbers for 3 channels"),
        ([1, 3, 6, 8], "float32", ["--image-std", "0"], "those of --image-std not 0"),
        ([1, 3, 6, 8], "float32", ["--image-mean", "a"], "not a list of numbers"),
        ([1, 2, 6, 8], "float32", ["--image-layout", "NCHW"], "1, 3 or 4 channels"),
    ],
)
def test_what_no_picture_fits(call, photo, tmp_path, shape, dtype, options, message):
    gk.Model({"y": gk.identity(gk.input("x", shape, dtype=dtype))}).save(tmp_path / "net.json")
    code, _, err = call("run", tmp_path / "net.json", f"x={photo}", *options)
    assert code == 2
    assert message in err


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 60_000])
def test_a_picture_that_fills_memory(call, tmp_path, side):
    """The header declares a large size, but there are hardly any data. Pillow only warns of the smaller one."""
    gk.Model({"y": gk.identity(gk.input("x", [1, 3, 6, 8]))}).save(tmp_path / "net.json")
    (tmp_path / "bomb.ppm").write_bytes(b"P6 %d %d 255\n" % (side, side) + bytes(1000))
    code, out, err = call("run", tmp_path / "net.json", f"x={tmp_path / 'bomb.ppm'}", "--json")
    assert code == 2
    assert "bomb.ppm" in err
    assert "limit" in err
    assert json.loads(out)["kind"] == "InputError"


def test_files_that_are_no_picture(call, tmp_path):
    gk.Model({"y": gk.identity(gk.input("x", [1, 3, 6, 8]))}).save(tmp_path / "net.json")
    Image.fromarray(PIXELS).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:300])
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(PIXELS[..., 0].astype(np.uint16)).save(tmp_path / "deep.png")
    for name, message in (
        ("cut.jpg", "image"),
        ("text.png", "image"),
        ("none.png", "none.png: no such file"),
        ("deep.png", "8"),
    ):
        code, out, err = call("run", tmp_path / "net.json", f"x={tmp_path / name}", "--json")
        assert code == 2, name
        assert message in err
        assert ("read 1 image" in err) == (name != "none.png")
        assert json.loads(out)["kind"] == "InputError"
    code, _, err = call("run", tmp_path / "net.json", f"xx={tmp_path / 'text.png'}")
    assert code == 2
    assert "no input 'xx'; did you mean 'x'?" in err


def test_without_pillow_the_command_to_install_it_is_said(call, photo, tmp_path, monkeypatch):
    gk.Model({"y": gk.identity(gk.input("x", [1, 3, 6, 8]))}).save(tmp_path / "net.json")
    monkeypatch.setitem(sys.modules, "PIL", None)
    code, _, err = call("run", tmp_path / "net.json", f"x={photo}")
    assert code == 5
    assert "pip install '.[images]'" in err
