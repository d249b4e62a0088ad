"""Somebody else's text, made fit to be shown."""

from __future__ import annotations

import pytest

from harness.observe._plain import plain, plain_lines


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ticket-17 ✓ größe 日本", "ticket-17 ✓ größe 日本"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("one\ntwo\r\x00", "one\\ntwo\\r\\x00"),
        ("a\u202etxt.exe", "a\\u202etxt.exe"),
        ("\ud800", "\\ud800"),
        ("key sk-abcdefghijkl", "key [key]"),
        ("Authorization: Bearer abcdefghijk", "Authorization: Bearer [key]"),
        ("postgresql://me:secret@host/db", "postgresql://me:[key]@host/db"),
        ("redis://:secret@host/0", "redis://:[key]@host/0"),
        ("{'x-api-key': 'hunter22'}", "{'x-api-key': '[key]'}"),
        ("[(b'x-api-key', b'hunter22'), (b'a', b'b')]", "[(b'x-api-key', b'[key]'), (b'a', b'b')]"),
        ("Set-Cookie: session=hunter22", "Set-Cookie: [key]"),
        ("AWS_SECRET_ACCESS_KEY=hunter22", "AWS_SECRET_ACCESS_KEY=[key]"),
        (f"?key=AIza{'x' * 30}&a=b", "?key=[key]&a=b"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.abc-_d said", "[key] said"),
        ("a key, a token, a cookie", "a key, a token, a cookie"),
        ("<b>&amp;", "<b>&amp;"),  # A page inserts it as text.
    ],
)
def test_what_would_act_on_a_terminal_or_is_a_secret_is_taken_out(text: str, shown: str) -> None:
    assert plain(text) == shown
    assert plain_lines(f"first\n{text}", at_most=1000).startswith("first\n")
    assert "\x1b" not in plain_lines(text, at_most=1000)


def test_what_is_too_long_is_cut_with_a_mark_and_no_half_of_a_secret() -> None:
    assert plain("x" * 400) == f"{'x' * 300}..."
    cut = plain(f"{'x' * 290} sk-{'a' * 40}", at_most=300)
    assert "sk-a" not in cut
    assert plain_lines("a\n" * 10, at_most=4) == "a\na\n..."
