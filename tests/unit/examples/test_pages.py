"""The example `pages`: what a marked page is, which patches are cut out of it, and what a model may be."""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from outlast.templates import templates

if "CI" in os.environ:
    import PIL.Image  # in CI nothing may be left out
    import torch
else:
    torch = pytest.importorskip("torch")
    pytest.importorskip("PIL.Image")
    import PIL.Image

PAGES = templates()["pages"]
PREFIX = "rgba PNG - "
LAYERS = ["background", "music_symbol", "staff_lines", "text"]


def modules(*names: str) -> list[Any]:
    """Modules of the example. Other examples have modules of the same names, so none stays behind."""
    kept = dict(sys.modules)
    sys.path.insert(0, str(PAGES))
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(PAGES))
        for name in set(sys.modules) - set(kept):
            if Path(getattr(sys.modules[name], "__file__", None) or "").parent == PAGES:
                del sys.modules[name]


make_data, marked, model, pages, separate = modules("make_data", "marked", "model", "pages", "separate")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pages, in a folder each; the ZIP that they were drawn into lies beside it."""
    folder = tmp_path_factory.mktemp("drawn")
    make_data.make_data(folder / "book.zip", pages=2, width=128, height=120)
    with zipfile.ZipFile(folder / "book.zip") as archive:
        archive.extractall(folder / "book")
    return folder / "book"


def page_of(image: Any, layers: dict[str, Any], selected: Any = None) -> Any:
    everywhere = torch.ones(image.shape[1:], dtype=torch.bool)
    return marked.Page("one", image, layers, everywhere if selected is None else selected)


# What is drawn.


def test_the_same_seed_draws_the_same_bytes_and_another_one_other_pages(drawn: Path, tmp_path: Path) -> None:
    for seed in (1, 2):
        make_data.make_data(tmp_path / ("%d.zip" % seed), pages=2, width=128, height=120, seed=seed)
    assert (tmp_path / "1.zip").read_bytes() == drawn.with_suffix(".zip").read_bytes()
    one, other = (marked.read_pages(tmp_path / name)[0].image for name in ("1.zip", "2.zip"))
    assert not torch.equal(one, other)


def test_drawn_layers_are_rgba_files_in_which_a_pixel_is_opaque_or_transparent(drawn: Path) -> None:
    names = ["Background layer", "Music symbol layer", "Selected regions", "Staff lines layer", "Text"]
    files = sorted((drawn / "001").glob(PREFIX + "*.png"))
    assert [file.name for file in files] == ["%s%s.png" % (PREFIX, name) for name in names]
    for file in files:
        with PIL.Image.open(file) as picture:
            assert (picture.mode, picture.size) == ("RGBA", (128, 120))
            assert {value for _, value in picture.getchannel("A").getcolors()} == {0, 255}


def test_each_marked_pixel_of_a_drawn_page_is_in_one_layer_and_no_other_in_any(drawn: Path) -> None:
    first, last = marked.read_pages(drawn)
    for page in (first, last):
        assert list(page.layers) == LAYERS
        assert torch.equal(sum(mask.int() for mask in page.layers.values()), page.selected.int())
        assert all(mask.any() for mask in page.layers.values())
    assert last.selected.all() and not first.selected.all()


def test_pages_are_not_drawn_over(drawn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = drawn.with_suffix(".zip")
    before = there.read_bytes()
    monkeypatch.setattr(sys, "argv", ["make_data.py", str(there)])
    with pytest.raises(SystemExit) as refused:
        make_data.main()
    assert refused.value.code == "%s exists already and was not changed" % there
    assert there.read_bytes() == before


def test_the_book_of_the_example_is_the_one_that_its_params_name() -> None:
    digest = hashlib.sha256((PAGES / "book.zip").read_bytes()).hexdigest()
    assert "sha256: %s" % digest in (PAGES / "params.yaml").read_text(encoding="utf-8")
    assert [list(page.layers) for page in marked.read_pages(PAGES / "book.zip")] == [LAYERS] * 4


# What is read.


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Background layer", "background"),
        ("Layer 0 (Background)", "background"),
        ("Layer 1", "layer_1"),
        ("Music symbol layer", "music_symbol"),
        ("Text", "text"),
        ("staff_lines", "staff_lines"),
        ("Selected regions", "selected_regions"),
    ],
)
def test_a_layer_is_called_after_its_file_as_rodan_and_pixel_js_name_it(title: str, name: str) -> None:
    assert marked.layer_of(title) == name


def test_pages_in_zips_are_the_pages_in_folders(drawn: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "Pixel_js - ZIP.zip", "w") as archive:
        for file in (drawn / "001").iterdir():
            archive.write(file, file.name)
    with zipfile.ZipFile(tmp_path / "zips.zip", "w") as archive:
        archive.write(tmp_path / "Pixel_js - ZIP.zip", "001.zip")
        archive.writestr("__MACOSX/._001.zip", b"")
        archive.writestr("notes.txt", b"")
    plain = marked.read_pages(drawn)[0]
    for path in ("Pixel_js - ZIP.zip", "zips.zip", drawn.with_suffix(".zip"), drawn / "001"):
        page = marked.read_pages(tmp_path / path)[0]
        assert torch.equal(page.image, plain.image) and torch.equal(page.selected, plain.selected)
        assert all(torch.equal(page.layers[layer], plain.layers[layer]) for layer in LAYERS)
    assert [page.name for page in marked.read_pages(tmp_path / "zips.zip")] == ["001"]
    assert [page.name for page in marked.read_pages(drawn.with_suffix(".zip"))] == ["001", "002"]


def test_without_selected_regions_the_whole_page_counts(drawn: Path, tmp_path: Path) -> None:
    copied = copy_of(drawn / "001", tmp_path)
    (copied / (PREFIX + "Selected regions.png")).unlink()
    assert marked.read_pages(copied)[0].selected.all()


def test_what_was_marked_outside_the_selected_regions_does_not_count(tmp_path: Path) -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    left = torch.zeros(8, 8, dtype=torch.bool)
    left[:, :4] = True
    marked.picture_of(image).save(tmp_path / "Image.png")
    marked.layer_of_page(image, torch.ones(8, 8, dtype=torch.bool)).save(tmp_path / (PREFIX + "Text.png"))
    marked.layer_of_page(image, left).save(tmp_path / (PREFIX + "Selected regions.png"))
    assert torch.equal(marked.read_pages(tmp_path)[0].layers["text"], left)


def test_a_layer_that_is_written_is_read_back_the_same(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    image = torch.randint(256, (3, 9, 14), generator=generator, dtype=torch.uint8)
    mask = torch.rand(9, 14, generator=generator) < 0.4
    marked.layer_of_page(image, mask).save(tmp_path / "layer.png")
    raw = (tmp_path / "layer.png").read_bytes()
    assert torch.equal(marked.read_mask(raw, "layer.png", (9, 14)), mask)
    shown = marked.pixels_of(marked.decode(raw, "layer.png"))
    assert torch.equal(shown[:3], image * mask)


def copy_of(page: Path, folder: Path) -> Path:
    return Path(shutil.copytree(page, folder / "page"))


def without_image(page: Path) -> None:
    (page / "Image.png").unlink()


def without_layers(page: Path) -> None:
    for file in page.glob(PREFIX + "*.png"):
        if "Selected" not in file.name:
            file.unlink()


def without_transparency(page: Path) -> None:
    path = page / (PREFIX + "Text.png")
    PIL.Image.open(path).convert("RGB").save(path)


def of_another_size(page: Path) -> None:
    PIL.Image.new("RGBA", (64, 60)).save(page / (PREFIX + "Text.png"))


def torn(page: Path) -> None:
    path = page / (PREFIX + "Text.png")
    path.write_bytes(path.read_bytes()[:200])


def nameless(page: Path) -> None:
    (page / (PREFIX + "Text.png")).rename(page / (PREFIX + ".png"))


def twice(page: Path) -> None:
    path = page / (PREFIX + "Text.png")
    (page / (PREFIX + "Layer 3 (Text).png")).write_bytes(path.read_bytes())


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (without_image, "page has no Image.png or Image.jpg or Image.jpeg"),
        (without_layers, 'page has no layer: no file named "rgba PNG - ….png"'),
        (
            without_transparency,
            "page/rgba PNG - Text.png is RGB, not RGBA: it does not mark any pixels",
        ),
        (of_another_size, "page/rgba PNG - Text.png has 64 × 60 pixels, the image of the page has 128 × 120"),
        (torn, "page/rgba PNG - Text.png cannot be read: "),
        (nameless, "page/rgba PNG - .png has no layer's name"),
        (twice, "page/rgba PNG - Text.png is a second file for the layer text"),
    ],
)
def test_a_page_that_is_not_whole_is_refused_with_a_sentence(
    drawn: Path, tmp_path: Path, spoil: Any, sentence: str
) -> None:
    copied = copy_of(drawn / "001", tmp_path)
    spoil(copied)
    with pytest.raises(marked.NotMarked) as refused:
        marked.read_pages(tmp_path)
    assert str(refused.value).startswith(sentence)


def test_pages_with_different_layers_are_refused(drawn: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn, tmp_path / "book")
    (tmp_path / "book" / "002" / (PREFIX + "Text.png")).unlink()
    with pytest.raises(marked.NotMarked) as refused:
        marked.read_pages(tmp_path / "book")
    assert str(refused.value) == (
        "002 has the layers background, music_symbol, staff_lines, "
        "001 has background, music_symbol, staff_lines, text"
    )


def test_a_folder_without_pages_and_a_zip_that_is_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(marked.NotMarked, match="has no page"):
        marked.read_pages(tmp_path)
    (tmp_path / "page.zip").write_bytes(b"no zip")
    with pytest.raises(marked.NotMarked, match="cannot be read: File is not a zip file"):
        marked.read_pages(tmp_path)


# What is cut.


def test_patches_are_cut_around_pixels_of_each_layer_in_turn(drawn: Path) -> None:
    torch.manual_seed(5)
    patches = marked.Patches(marked.read_pages(drawn), LAYERS, (33, 33), 10)
    assert len(patches) == 40
    for index in range(40):
        image, marks, selected = patches[index]
        assert (image.shape, marks.shape, selected.shape) == ((3, 33, 33), (4, 33, 33), (33, 33))
        assert image.dtype == torch.uint8 and marks[index % 4].any()
        assert not (marks.any(dim=0) & ~selected).any()


def test_every_pixel_of_a_layer_can_be_drawn_and_no_other() -> None:
    dots = [torch.zeros(6, 7, dtype=torch.bool) for _ in range(2)]
    dots[0][1, 2] = dots[0][1, 5] = dots[0][5, 0] = dots[1][0, 6] = dots[1][5, 6] = True
    image = torch.zeros(3, 6, 7, dtype=torch.uint8)
    book = [page_of(image, {"dots": mask}) for mask in dots]
    patches = marked.Patches(book, ["dots"], (3, 3), 1)
    torch.manual_seed(1)
    found = [patches.a_pixel_of("dots") for _ in range(200)]
    drawn = {
        (next(n for n, one in enumerate(book) if one is page), row, column) for page, row, column in found
    }
    assert drawn == {
        (n, *place) for n, mask in enumerate(dots) for place in map(tuple, mask.nonzero().tolist())
    }


def test_the_same_random_numbers_cut_the_same_patch_and_others_another(drawn: Path) -> None:
    patches = marked.Patches(marked.read_pages(drawn), LAYERS, (32, 32), 4)
    cut = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        cut.append(patches[2])
    assert all(torch.equal(one, other) for one, other in zip(cut[0], cut[1], strict=True))
    assert not torch.equal(cut[0][0], cut[2][0])


def test_a_mirrored_patch_has_mirrored_marks() -> None:
    generator = torch.Generator().manual_seed(7)
    ink = torch.rand(40, 40, generator=generator) < 0.5
    book = [page_of((ink * 200).to(torch.uint8).expand(3, 40, 40), {"ink": ink, "paper": ~ink}, ink)]
    patches = marked.Patches(book, ["paper", "ink"], (16, 16), 20)
    torch.manual_seed(2)
    for index in range(40):
        image, marks, selected = patches[index]
        assert torch.equal(image[0] > 0, marks[1]) and torch.equal(marks[0], ~marks[1])
        assert torch.equal(selected, marks[1])


def test_a_page_that_is_smaller_than_a_patch_and_a_layer_that_nobody_marked_are_refused(drawn: Path) -> None:
    book = marked.read_pages(drawn)
    with pytest.raises(marked.NotMarked) as refused:
        marked.Patches(book, LAYERS, (64, 256), 1)
    assert str(refused.value) == "the page 001 has 128 × 120 pixels, less than a patch of 256 × 64"
    nothing = torch.zeros(120, 128, dtype=torch.bool)
    empty = [page._replace(layers={**page.layers, "text": nothing}) for page in book]
    with pytest.raises(marked.NotMarked, match="no page for training has a marked pixel of the layer text"):
        marked.Patches(empty, LAYERS, (32, 32), 1)


# What is learned.


def small_models() -> Any:
    torch.manual_seed(1)
    return torch.nn.ModuleDict({layer: model.AutoEncoder(2) for layer in LAYERS})


def a_batch(seed: int) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (3, 3, 16, 16), generator=generator, dtype=torch.uint8)
    marks, selected = (torch.rand(3, *more, 16, 16, generator=generator) < 0.5 for more in ((4,), ()))
    return pixels, marks, selected


def test_what_was_not_selected_teaches_nothing() -> None:
    models = small_models()
    pixels, marks, selected = a_batch(1)
    others = torch.where(selected[:, None], marks, ~marks)
    assert not torch.equal(marks, others)
    losses = [pages.losses_of(models, pixels, one, selected) for one in (marks, others, ~marks)]
    assert all(torch.equal(losses[0][layer], losses[1][layer]) for layer in LAYERS)
    assert not any(torch.equal(losses[0][layer], losses[2][layer]) for layer in LAYERS)


def test_a_model_that_is_trained_beside_others_becomes_what_it_becomes_alone() -> None:
    def trained(layers: list[str]) -> Any:
        models = torch.nn.ModuleDict({layer: one for layer, one in small_models().items() if layer in layers})
        optimizer = torch.optim.Adam(models.parameters(), lr=0.01)
        for seed in range(3):
            pixels, marks, selected = a_batch(seed)
            wanted = marks[:, [LAYERS.index(layer) for layer in layers]]
            optimizer.zero_grad()
            sum(pages.losses_of(models, pixels, wanted, selected).values()).backward()
            optimizer.step()
        return models

    together, alone = trained(LAYERS)["staff_lines"], trained(["staff_lines"])["staff_lines"]
    pairs = zip(together.state_dict().values(), alone.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_checkpoints_of_a_training_with_other_settings_are_refused_with_what_it_had() -> None:
    def settings(**changes: Any) -> Any:
        return pages.Settings(
            argparse.Namespace(**{"data": "a", "lr": 0.1, "batch_size": 8, "workers": 0, **changes})
        )

    settings(data="b", workers=2).load_state_dict(settings().state_dict())
    with pytest.raises(SystemExit) as refused:
        settings(batch_size=16).load_state_dict(settings().state_dict())
    assert str(refused.value.code).startswith("the checkpoints were saved with --batch-size 8; use the")


def test_the_first_weights_of_a_model_do_not_depend_on_which_others_are_trained(drawn: Path) -> None:
    page = marked.read_pages(drawn)[0]
    options = argparse.Namespace(seed=3, width=2)
    together = pages.new_models(options, page, LAYERS)
    assert list(together) == LAYERS
    for layer in LAYERS:
        alone = pages.new_models(options, page, [layer])
        assert list(alone) == [layer]
        assert torch.equal(alone[layer].verdict.weight, together[layer].verdict.weight)
    weights = [together[layer].verdict.weight for layer in LAYERS]
    assert not any(torch.equal(weights[0], other) for other in weights[1:])


def test_only_marked_layers_can_be_asked_for(drawn: Path) -> None:
    page = marked.read_pages(drawn)[0]
    assert pages.layers_of(argparse.Namespace(layers=[]), page) == LAYERS
    # In the order of the page, whatever the order of the wish: marks and models are matched by it.
    assert pages.layers_of(argparse.Namespace(layers=["text", "background"]), page) == ["background", "text"]
    with pytest.raises(marked.NotMarked) as refused:
        pages.layers_of(argparse.Namespace(layers=["text", "tekst"]), page)
    assert str(refused.value) == "there is no layer tekst; the marked layers are " + ", ".join(LAYERS)


def test_the_last_page_is_not_learned_from_unless_it_is_the_only_one(
    drawn: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    book = marked.read_pages(drawn)
    learned, held_out = pages.divided(book)
    assert ([page.name for page in learned], [page.name for page in held_out]) == (["001"], ["002"])
    assert capsys.readouterr().out == ""
    learned, held_out = pages.divided(book[:1])
    assert [page.name for page in learned] == [page.name for page in held_out] == ["001"]
    assert capsys.readouterr().out.startswith(
        "there is only one page: it is used for training and for the test"
    )


def test_data_that_is_not_there_or_not_marked_ends_it_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    for name, sentence in (("nowhere", "there is no nowhere in "), ("empty", "empty has no page: ")):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["pages.py", "--data", name])
        with pytest.raises(SystemExit) as refused:
            pages.main()
        assert str(refused.value.code).startswith(sentence)


def test_a_patch_that_cannot_be_shrunk_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["pages.py", "--patch-width", "50"])
    with pytest.raises(SystemExit):
        pages.main()
    assert capsys.readouterr().err.endswith("the height and the width of a patch must be multiples of 4\n")


def test_f1_counts_what_was_found_rightly_and_wrongly_where_the_page_was_marked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = torch.tensor([[1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    selected = torch.tensor([[1, 1, 1, 1, 1, 0]], dtype=torch.bool)
    found = torch.tensor([[1, 1, 0, 1, 0, 1]], dtype=torch.bool)  # two right, one missed, one too many
    page = page_of(torch.zeros(3, 1, 6, dtype=torch.uint8), {"text": text}, selected)
    monkeypatch.setattr(pages, "separate", lambda models, image: {"text": found})
    assert pages.measure({"text": None}, [page]) == {"text": 4 / 6}
    monkeypatch.setattr(pages, "separate", lambda models, image: {"text": text})
    assert pages.measure({"text": None}, [page, page]) == {"text": 1.0}


def test_a_page_is_separated_the_same_in_squares_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    network = model.AutoEncoder(4)
    image = torch.randint(256, (3, 75, 118), dtype=torch.uint8)
    network(image[None, :, :64, :64])  # so that what it has learned of the pixels' spread is not nothing
    found = []
    for square in (256, 32, 20):
        monkeypatch.setattr(model, "SQUARE", square)
        found.append(model.scores_of(network, image))
    assert found[0].shape == (75, 118) and network.training
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-4, atol=1e-5)


def test_of_several_layers_each_pixel_has_one_and_a_single_model_may_leave_pixels_out() -> None:
    image = torch.randint(256, (3, 24, 24), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    models = small_models()
    separated = model.separate(models, image)
    assert torch.equal(sum(mask.int() for mask in separated.values()), torch.ones(24, 24, dtype=torch.int32))
    with torch.no_grad():
        models["text"].verdict.bias.fill_(-100)
    assert not model.separate({"text": models["text"]}, image)["text"].any()


def separated(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["separate.py", *map(str, words)])
    separate.main()


def test_what_is_separated_is_a_marked_page_with_the_layers_that_the_models_found(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for layer, network in small_models().items():
        # As a sweep leaves them: each in the folder of its run.
        (tmp_path / "results" / layer).mkdir(parents=True)
        torch.save(network.state_dict(), tmp_path / "results" / layer / ("%s.pt" % layer))
    separated(monkeypatch, tmp_path / "results", drawn / "001" / "Image.png", tmp_path / "out")
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == LAYERS
    (page,) = marked.read_pages(tmp_path / "out")
    expected = model.separate(small_models(), marked.read_pages(drawn)[0].image)
    assert list(page.layers) == LAYERS
    assert all(torch.equal(page.layers[layer], expected[layer]) for layer in LAYERS)


def test_separating_refuses_what_it_cannot_use_with_a_sentence(
    drawn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = drawn / "001" / "Image.png"
    for folder in ("none", "one", "two", "bad"):
        (tmp_path / folder / "again").mkdir(parents=True)
    for name in ("one/text.pt", "two/text.pt", "two/again/text.pt"):
        torch.save(model.AutoEncoder(2).state_dict(), tmp_path / name)
    (tmp_path / "bad" / "text.pt").write_bytes(b"weights")
    text = tmp_path / "page.txt"
    text.write_text("no image")
    for words, sentence in (
        (("none", image, "out"), "none has no model: no file ends in .pt"),
        (("two", image, "out"), "text.pt is a second model of that layer; choose a folder with only one"),
        (("bad", image, "out"), "text.pt cannot be read as a model: "),
        (("one", text, "out"), "page.txt is not an image"),
        (("one", image, "one"), "File exists: "),
        (("one", "nowhere.png", "out"), "No such file or directory: "),
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as refused:
            separated(monkeypatch, *words)
        assert sentence in str(refused.value.code)
    assert not (tmp_path / "out").exists()


# What a model may be.


def test_a_whole_model_is_read_back_with_its_bits(tmp_path: Path) -> None:
    network = model.AutoEncoder(3)
    torch.save(network.state_dict(), tmp_path / "text.pt")
    back = model.read_model(tmp_path / "text.pt").state_dict()
    assert all(torch.equal(back[name], value) for name, value in network.state_dict().items())


WEIGHT = "outer.0.weight"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {WEIGHT: torch.full((2, 3, 3, 3), float("nan"))},
            "has outer.0.weight with numbers that are not finite",
        ),
        (
            {WEIGHT: torch.zeros(2, 3, 5, 5)},
            "has outer.0.weight of shape (2, 3, 5, 5), float32 instead of shape",
        ),
        (
            {WEIGHT: torch.zeros(2, 3, 3, 3).double()},
            "has outer.0.weight of shape (2, 3, 3, 3), float64 instead",
        ),
        ({WEIGHT: 7}, "has outer.0.weight of type int instead of shape (2, 3, 3, 3), float32"),
        ({WEIGHT: None}, "has no outer.0.weight"),
        ({"extra": torch.zeros(1)}, "has extra, which no model of a layer has"),
        ({"verdict.weight": None}, "has no verdict.weight, so it is not a model of a layer"),
    ],
)
def test_the_check_refuses_a_wrong_model_with_a_sentence(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    state = dict(model.AutoEncoder(2).state_dict())
    for name, value in change.items():
        state.pop(name, None)
        if value is not None:
            state[name] = value
    torch.save(state, tmp_path / "text.pt")
    with pytest.raises(model.BadModel) as refused:
        model.read_model(tmp_path / "text.pt")
    assert str(refused.value).startswith(sentence)


def test_the_check_looks_at_all_models_and_names_the_one_that_is_torn(tmp_path: Path) -> None:
    for layer in ("background", "text"):
        torch.save(model.AutoEncoder(2).state_dict(), tmp_path / ("%s.pt" % layer))
    raw = (tmp_path / "text.pt").read_bytes()
    (tmp_path / "text.pt").write_bytes(raw[: len(raw) // 2])
    checked = subprocess.run(
        [sys.executable, PAGES / "check_model.py", "background.pt", "text.pt"],
        env={**os.environ, "OUTLAST_OUTPUT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 1
    assert (
        checked.stderr.startswith("text.pt cannot be read as a model: ") and checked.stderr.count("\n") == 1
    )


# What is missing.


#: Runs a script where one of its libraries is not there, and the other one need not be imported.
WITHOUT = """
import runpy, sys, unittest.mock
there = unittest.mock.MagicMock()
sys.modules.update({"torch": there, "torch.nn": there, sys.argv[2]: None})
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize("script", ["pages.py", "make_data.py", "separate.py"])
@pytest.mark.parametrize("library", ["torch", "PIL"])
def test_without_its_libraries_it_says_what_to_type(script: str, library: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT, PAGES / script, library],
        env={**os.environ, "PYTHONPATH": str(PAGES)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "%s is not installed; type: pip install torch pillow\n" % library
