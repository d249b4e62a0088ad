"""What an item says is kept with it: log records, notes, messages, files."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import harness
from harness import Attempt, BestEffort, Retry
from harness.agents import Agent, tool
from harness.cli import main
from harness.cli._journal_item import safe_name
from harness.errors import RunEndedError
from harness.flow import Batch, Pipeline, stage
from harness.journal import ItemLogs, KeptRecord, edit_journal, open_journal, read_journal
from harness.models import ScriptedModel
from tests.agents.fakes import calls

BEST = BestEffort()
logger = logging.getLogger("tests.item_logs")
logger.setLevel(logging.DEBUG)


def key_of(item: Any) -> Any:
    return item


async def session(path: Any, fn: Any, *items: Any, logs: ItemLogs | None, **more: Any) -> None:
    async with open_journal(path, logs=logs) as journal:
        await harness.fan_out(
            fn, items, key=key_of, journal=journal, policy=BEST, name="batch", **more
        )


def kept(path: Any, key: Any = 1, batch: str = "batch") -> list[KeptRecord]:
    with read_journal(path) as reader:
        return list(reader.kept(batch, key))


def said(path: Any, key: Any = 1, batch: str = "batch") -> list[tuple[str, str, Any]]:
    return [(one.kind, one.name, one.text or one.content) for one in kept(path, key, batch)]


async def talks(item: int) -> int:
    run = harness.current_run()
    logger.debug("not from this level on")
    logger.info("at %s", item)
    run.emit_nowait("half way")
    await run.emit({"done": 3})
    run.keep("page.html", f"<p>{item}")
    await trio.sleep(1)
    return item


# What is kept -------------------------------------------------------------------------------------


async def test_each_item_has_what_it_said(journal_path: str, autojump_clock: MockClock) -> None:
    await session(journal_path, talks, 1, 2, logs=ItemLogs())
    for key in (1, 2):
        assert said(journal_path, key) == [
            ("log", "tests.item_logs", f"INFO tests.item_logs: at {key}"),
            ("note", "str", "half way"),
            ("note", "dict", "{'done': 3}"),
            ("file", "page.html", f"<p>{key}".encode()),
        ]
    assert {one.run_path for one in kept(journal_path)} == {"batch/1"}


async def test_nothing_but_files_is_kept_unless_it_is_asked_for(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def look(item: int) -> int:
        assert not harness.current_run()._observers
        assert "harness" not in "".join(type(one).__module__ for one in logging.root.handlers)
        return await talks(item)

    await session(tmp_path / "run.db", look, 1, logs=None)
    assert said(tmp_path / "run.db") == [("file", "page.html", b"<p>1")]


async def test_the_handler_goes_with_the_journal(tmp_path: Path, autojump_clock: MockClock) -> None:
    before = list(logging.root.handlers)
    async with open_journal(tmp_path / "run.db", logs=ItemLogs()):
        assert len(logging.root.handlers) == len(before) + 1
    assert logging.root.handlers == before


@pytest.mark.parametrize("level", [logging.INFO, logging.ERROR])
async def test_warnings_still_come_to_standard_error_where_no_logging_is_set_up(
    level: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    autojump_clock: MockClock,
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])

    async def body(item: int) -> None:
        logger.warning("careful")

    async with open_journal(tmp_path / "other.db", logs=ItemLogs()):
        await session(tmp_path / "run.db", body, 1, logs=ItemLogs(level=level))
    assert capsys.readouterr().err == "careful\n"


@pytest.mark.parametrize(
    ("logs", "kinds"),
    [
        (ItemLogs(level=None), {"note", "file"}),
        (ItemLogs(level=logging.WARNING), {"note", "file"}),
        (ItemLogs(notes=False), {"log", "file"}),
    ],
)
async def test_each_kind_can_be_left_out(
    logs: ItemLogs, kinds: set[str], tmp_path: Path, autojump_clock: MockClock
) -> None:
    await session(tmp_path / "run.db", talks, 1, logs=logs)
    assert {one.kind for one in kept(tmp_path / "run.db")} == kinds


async def test_what_a_worker_thread_and_runs_below_say_is_the_items(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def in_thread() -> None:
        logger.info("in a thread")
        harness.current_run().keep("thread.txt", "t")

    async def body(item: int) -> None:
        async with harness.open_run("below"):
            await trio.to_thread.run_sync(in_thread)
            logger.info("below")

    await session(tmp_path / "run.db", body, 1, logs=ItemLogs())
    assert [(one.kind, one.run_path) for one in kept(tmp_path / "run.db")] == [
        ("log", "batch/1/below"),
        ("file", "batch/1/below"),
        ("log", "batch/1/below"),
    ]


async def test_only_items_of_the_journal_that_asked_have_their_records(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def inner(item: int) -> None:
        logger.info("inner")
        harness.current_run().keep("a.txt", "a")

    async def outer(item: int) -> None:
        logger.info("outer")
        await session(tmp_path / "inner.db", inner, 1, logs=None)

    logger.info("outside")
    await session(tmp_path / "outer.db", outer, 1, logs=ItemLogs())
    assert [(one.run_path, one.text) for one in kept(tmp_path / "outer.db")] == [
        ("batch/1", "INFO tests.item_logs: outer"),
        ("batch/1/batch/1", "INFO tests.item_logs: inner"),
    ]
    assert said(tmp_path / "inner.db") == [("file", "a.txt", b"a")]


async def test_what_an_item_said_before_it_was_cut_short_is_there(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def hangs(item: int) -> None:
        logger.warning("before")
        await trio.sleep_forever()

    with trio.move_on_after(3):
        await session(tmp_path / "run.db", hangs, 1, logs=ItemLogs())
    assert [text for _, _, text in said(tmp_path / "run.db")] == ["WARNING tests.item_logs: before"]


async def test_every_attempt_is_there_with_its_traceback(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def fails(item: int) -> None:
        try:
            raise ValueError("oh no")
        except ValueError:
            logger.exception("attempt %s", harness.current_run().attempt)
            raise

    each: Attempt = Attempt(retry=Retry(attempts=2))
    await session(tmp_path / "run.db", fails, 1, logs=ItemLogs(), each=each)
    texts = [text for _, _, text in said(tmp_path / "run.db")]
    assert [text.splitlines()[0] for text in texts] == [
        "ERROR tests.item_logs: attempt 1",
        "ERROR tests.item_logs: attempt 2",
    ]
    assert all(text.endswith("ValueError: oh no") for text in texts)


async def test_secrets_are_masked_but_files_are_as_they_are(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    secret = "api_key=sk-abcdefghijklmnop1234567890"  # What is to be masked.

    async def body(item: int) -> None:
        logger.info("with %s", secret)
        harness.current_run().emit_nowait(f"note {secret}")
        harness.current_run().emit_nowait({"headers": secret})
        harness.current_run().keep("a.txt", secret)

    await session(tmp_path / "run.db", body, 1, logs=ItemLogs())
    *words, (_, _, content) = said(tmp_path / "run.db")
    assert len(words) == 3
    assert "sk-abc" not in str(words)
    assert content == secret.encode()


async def test_the_messages_of_agents_are_kept_once_each(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    @tool
    async def double(number: int) -> int:
        """Double it."""
        return 2 * number

    model = ScriptedModel([calls(("double", {"number": 21})), "42"])
    agent = Agent("a", instructions="Be brief.", model=model, tools=[double])
    await session(tmp_path / "run.db", agent, "1", logs=ItemLogs())
    assert said(tmp_path / "run.db", "1") == [
        ("message", "system", "Be brief."),
        ("message", "user", "1"),
        ("message", "assistant", "calls double({'number': 21})"),
        ("message", "tool", "42"),
        ("message", "assistant", "42"),
    ]


async def test_a_call_for_several_items_is_kept_with_each(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def together(items: list[int]) -> list[int]:
        logger.info("for %s", len(items))
        harness.current_run().emit_nowait("note")
        harness.current_run().keep("all.txt", "x")
        return items

    async with open_journal(tmp_path / "run.db", logs=ItemLogs()) as journal:
        flow = Pipeline(stage(together, batch=Batch(2)))
        await flow.run([1, 2], key=key_of, journal=journal)
    for key in (1, 2):
        kinds = [kind for kind, _, _ in said(tmp_path / "run.db", key, "pipeline")]
        assert kinds == ["log", "note", "file"]


async def test_forgetting_an_item_forgets_what_it_said(
    journal_path: str, autojump_clock: MockClock
) -> None:
    await session(journal_path, talks, 1, 2, logs=ItemLogs())
    with edit_journal(journal_path) as editor:
        editor.forget("batch", [1])
        assert editor._backend.fetch("SELECT count(*) FROM harness_kept") == [(4,)]
    async with open_journal(journal_path, logs=ItemLogs()) as journal:  # No number is used again.
        await harness.fan_out(talks, [1, 2], key=key_of, journal=journal, policy=BEST, name="batch")
    assert len(said(journal_path, 1)) == len(said(journal_path, 2)) == 4


# The budget ---------------------------------------------------------------------------------------


async def test_what_is_beyond_the_budget_is_left_out_and_that_is_said(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def body(item: int) -> None:
        run = harness.current_run()
        run.keep("large.bin", bytes(2_000))
        run.keep("small.bin", bytes(500))
        run.emit_nowait("a" * 1_000)
        run.emit_nowait("nothing of this")
        run.keep("late.bin", b"x")

    await session(tmp_path / "run.db", body, 1, 2, logs=ItemLogs(bytes_per_item=1_000))
    for key in (1, 2):
        large, small, note, later, late = said(tmp_path / "run.db", key)
        left_out = "was left out: an item keeps 1,000 bytes in one session"
        assert large == ("cut", "large.bin", f"the file 'large.bin' of 2,000 bytes {left_out}")
        assert small == ("file", "small.bin", bytes(500))
        assert note[:2] == ("note", "str")
        assert note[2].startswith("aaa")
        assert note[2].endswith("... (1,000 characters)")
        assert later == ("cut", "str", f"what came later {left_out}")
        assert late == ("cut", "late.bin", f"the file 'late.bin' of 1 bytes {left_out}")


async def test_one_record_is_cut_to_a_readable_length(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def body(item: int) -> None:
        logger.info("x" * 50_000)

    await session(tmp_path / "run.db", body, 1, logs=ItemLogs())
    [(_, _, text)] = said(tmp_path / "run.db")
    assert 20_000 <= len(text) < 20_100


# Mistakes -----------------------------------------------------------------------------------------


async def test_outside_a_journal_nothing_is_kept(autojump_clock: MockClock) -> None:
    async with harness.open_run("r") as run:
        run.keep("a.txt", "a")
    with pytest.raises(RunEndedError, match="it can't keep anything"):
        run.keep("a.txt", "a")


@pytest.mark.parametrize(
    ("name", "data", "error", "words"),
    [
        (1, "a", TypeError, "the name of a file"),
        ("", "a", ValueError, "a name for the file"),
        ("a", 1, TypeError, "takes text or bytes, not a int"),
    ],
)
async def test_what_cant_be_a_file_is_refused(
    name: Any, data: Any, error: type[Exception], words: str, autojump_clock: MockClock
) -> None:
    async with harness.open_run("r") as run:
        with pytest.raises(error, match=words):
            run.keep(name, data)


def test_bad_options_are_refused() -> None:
    with pytest.raises(TypeError, match=r"ItemLogs\(level=\.\.\.\) takes a level"):
        ItemLogs(level="INFO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bytes_per_item=\.\.\."):
        ItemLogs(bytes_per_item=0)
    with pytest.raises(TypeError, match=r"open_journal\(logs=\.\.\.\) takes an ItemLogs"):
        open_journal("run.db", logs=True)  # type: ignore[arg-type]


# Looked at ----------------------------------------------------------------------------------------


async def test_show_tells_all_of_one_item(
    journal_path: str,
    tmp_path: Path,
    autojump_clock: MockClock,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def body(item: int) -> Any:
        logger.info("first\nsecond \x1b[31m line")
        harness.current_run().keep("../../etc/passwd", "root")
        harness.current_run().keep("page.html", "<p>")
        harness.current_run().keep("PAGE.html", "<h>")
        return {"of": item}

    async with open_journal(journal_path, logs=ItemLogs()) as journal:
        await Pipeline(body, stage(body, name="b")).run([7], key=key_of, journal=journal)
    folder = tmp_path / "out"
    assert main(["journal", "show", journal_path, "7", "--files", str(folder)]) == 0
    told = capsys.readouterr().out.splitlines()
    lines = [line[12:] if line[2:3].isdigit() else line for line in told]
    assert lines[:7] == [
        '7: {"of":{"of":7}} (ok, 1 attempt, 0.0 s)',
        "log      INFO tests.item_logs: first",
        "      second \\x1b[31m line",
        "file     ../../etc/passwd (4 bytes)",
        "file     page.html (3 bytes)",
        "file     PAGE.html (3 bytes)",
        "done     stage 'body': {\"of\":7}",
    ]
    names = ["PAGE-2.html", "PAGE-4.html", "etc_passwd", "etc_passwd-2", "page-3.html", "page.html"]
    assert sorted(one.name for one in folder.iterdir()) == names
    assert (folder / "etc_passwd").read_text() == "root"
    assert main(["journal", "show", journal_path, "7", "--files", str(folder)]) == 2
    assert "already exists, and nothing is overwritten" in capsys.readouterr().err


@pytest.mark.usefixtures("clean_imports")
def test_batch_keeps_logs_if_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    code = (
        "import logging\nasync def answer(line):\n    logging.getLogger('a').info('at %s', line)\n"
    )
    Path("agent.py").write_text(code)
    Path("in.txt").write_text("one\n")
    batch = "batch agent.py:answer --input in.txt --journal run.db --keep-logs --output out.jsonl"
    assert main(batch.split()) == 0
    assert "at one" not in capsys.readouterr().err, "--log-level says what is shown"
    assert said("run.db", "0") == [("log", "a", "INFO a: at one")]


async def test_files_never_go_through_a_link(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.db"
    await session(path, talks, 1, logs=None)
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "page.html").symlink_to(elsewhere)
    assert main(["journal", "show", str(path), "1", "--files", str(folder)]) == 2
    assert not elsewhere.exists()


async def test_show_refuses_what_it_cant_show(
    tmp_path: Path, autojump_clock: MockClock, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "run.db")
    await session(path, talks, 1, logs=None)
    for arguments, words in (
        (["9"], "has no item '9'"),
        (["--files", "out"], "give its KEY after FILE"),
        (["1", "--where", "attempts > 2"], "exclude each other"),
    ):
        assert main(["journal", "show", path, *arguments]) == 2
        assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("page.html", "page.html"),
        ("a/b/c.txt", "a_b_c.txt"),
        ("../../etc/passwd", "etc_passwd"),
        ("..\\..\\windows\\win.ini", "windows_win.ini"),
        ("/absolute", "absolute"),
        ("C:\\x", "C__x"),
        (".bashrc", "bashrc"),
        ("..", "file"),
        ("...", "file"),
        ("/", "file"),
        ("nul.txt", "_nul.txt"),
        ("a\0b\n\x1b.txt", "a_b__.txt"),
        ("trailing. ", "trailing"),
        ("bücher.pdf", "bücher.pdf"),
        ("x" * 500 + ".html", "x" * 115 + ".html"),
        ("a." + "y" * 500, "file"),
    ],
)
def test_names_of_files_are_made_safe(name: str, safe: str) -> None:
    assert safe_name(name) == safe
