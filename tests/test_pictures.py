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
    drawn = picture.read_text(encoding="utf-8")
    assert picture.name in PICTURES
    assert "prefers-color-scheme: dark" in drawn
    assert not re.search(r"href|url\(|@import|<script", drawn)
