"""Opening what a batch reads and writes, or saying why not."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli._errors import InputError
from harness.cli._files import check_output, open_input, open_output
from tests.support.permissions import as_somebody, needs_permissions


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "in.csv"
    path.write_text("a\n1\n")
    return path


def refusal(output: str, input_path: Path, *, overwrite: bool = False) -> str:
    with open_input(str(input_path)) as input_, pytest.raises(InputError) as caught:
        check_output(output, input_, overwrite=overwrite, option="--output")
    return caught.value.message


def test_input_knows_its_size(given: Path) -> None:
    with open_input(str(given)) as input_:
        assert input_.size_bytes == 4
        assert input_.source.read(100) == b"a\n1\n"


@pytest.mark.parametrize(
    ("path", "words"),
    [("missing.csv", "is not there"), (".", "is a folder"), ("a\0b", "can't be read")],
)
def test_input_that_cannot_be_read_is_refused(given: Path, path: str, words: str) -> None:
    with pytest.raises(InputError, match=words), open_input(path):
        pass


@needs_permissions
def test_input_without_permission_is_refused(given: Path) -> None:
    given.chmod(0)
    with as_somebody(given.parent):
        with pytest.raises(InputError, match="Permission denied"), open_input(str(given)):
            pass


def test_closed_standard_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match="standard input is closed"), open_input("-"):
        pass


def test_new_output_is_fine(given: Path) -> None:
    with open_input(str(given)) as input_:
        check_output("out.jsonl", input_, overwrite=False, option="--output")
    assert not Path("out.jsonl").exists()


def test_output_that_is_there_needs_overwrite(given: Path) -> None:
    Path("out.jsonl").write_text("precious\n")
    assert "--overwrite" in refusal("out.jsonl", given)
    with open_input(str(given)) as input_:
        check_output("out.jsonl", input_, overwrite=True, option="--output")
    assert Path("out.jsonl").read_text() == "precious\n"


@pytest.mark.parametrize("overwrite", [True, False])
@pytest.mark.parametrize(
    "link",
    [
        lambda target, path: path.symlink_to(target),
        lambda target, path: path.hardlink_to(target),
        lambda target, path: None,
    ],
    ids=["symlink", "hardlink", "other spelling"],
)
def test_output_is_never_the_input(
    given: Path, link: Callable[[Path, Path], None], overwrite: bool
) -> None:
    """Whatever it is called: opening it for writing would empty it before it is read."""
    path = given.parent / "link.jsonl"
    link(given, path)
    output = str(path) if path.exists() else f"{given.parent}/../{given.parent.name}/in.csv"
    assert "is the input itself" in refusal(output, given, overwrite=overwrite)
    assert given.read_text() == "a\n1\n"


def test_output_in_a_missing_folder_or_as_a_folder_is_refused(given: Path) -> None:
    assert "there is no folder 'results'" in refusal("results/out.jsonl", given)
    assert "is a folder" in refusal(str(given.parent), given, overwrite=True)


@pytest.mark.skipif(os.name != "posix", reason="needs a device that takes everything")
def test_output_in_which_nothing_can_be_lost_needs_no_overwrite(given: Path) -> None:
    with open_input(str(given)) as input_:
        check_output(os.devnull, input_, overwrite=False, option="--output")
    open_output(os.devnull, overwrite=False, stdout=sys.stdout).close()


def test_file_that_appears_after_the_check_is_not_overwritten(given: Path) -> None:
    Path("out.jsonl").write_text("precious\n")
    with pytest.raises(InputError, match="can't be written: File exists"):
        open_output("out.jsonl", overwrite=False, stdout=sys.stdout)
    assert Path("out.jsonl").read_text() == "precious\n"


def test_link_that_leads_nowhere_is_not_followed(given: Path) -> None:
    Path("out.jsonl").symlink_to("elsewhere/out.jsonl")
    with pytest.raises(InputError, match="can't be written"):
        open_output("out.jsonl", overwrite=False, stdout=sys.stdout)
