"""Hold the pictures of the docs to what the programs in tests/pictures.py do now."""

import re
from pathlib import Path

import pytest

from tests.pictures import FOLDER, PICTURES


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_what_its_program_does(name: str) -> None:
    drawn = (FOLDER / name).read_text(encoding="utf-8")
    assert drawn == PICTURES[name](), "stale: run python -m tests.pictures"


@pytest.mark.parametrize("picture", sorted(FOLDER.iterdir()), ids=lambda picture: picture.name)
def test_a_picture_has_both_themes_and_loads_nothing(picture: Path) -> None:
    """Those drawn from measurements, which `python -m benchmarks page` makes, come in pairs."""
    drawn = picture.read_text(encoding="utf-8")
    if picture.name in PICTURES:
        assert "prefers-color-scheme: dark" in drawn
    else:
        stem, theme = picture.stem.rsplit("-", 1)
        assert (FOLDER / f"{stem}-{'light' if theme == 'dark' else 'dark'}.svg").exists()
    assert not re.search(r"href=\"http|url\(|@import|<script", drawn)
