"""Find the JSON in what a model says: between words, in fences, after its thoughts.

Models are asked for JSON alone, and still greet, think aloud, explain, correct themselves and write
JSON as a person would. So a value is looked for wherever one can begin, and read as it is meant:
with single quotes, comments, trailing commas or Python's constants. Nothing is read that isn't
whole. Fences need no attention: the value in one begins with a bracket, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs

LOOKED_AT_MOST = 300_000
"""How many characters after brackets that begin no value are looked at. A text of such brackets
alone would take the square of its length."""

_TAGS = "think|thinking|thought|thoughts|reasoning|reflection|scratchpad|analysis|inner_monologue"
_MARK = re.compile(
    rf"""(?P<value>[{{\[](?!/?THINK\]))
    | (?P<opens><(?:{_TAGS})\b[^<>]*> | \[THINK\] | ◁think▷ | <\|channel\|>analysis<\|message\|>
        | ^(?:```|~~~)(?:{_TAGS})[ ]*$ )
    | (?P<closes></(?:{_TAGS})\s*> | \[/THINK\] | ◁/think▷ | <\|channel\|>final<\|message\|>)""",
    re.IGNORECASE | re.VERBOSE | re.MULTILINE,
)
_END_OF_THOUGHTS = {
    "<|": re.compile(r"<\|end\|>|(?=<\|channel\|>final)", re.IGNORECASE),
    "``": re.compile(r"^```", re.MULTILINE),
    "~~": re.compile(r"^~~~", re.MULTILINE),
    "[t": re.compile(r"\[/THINK\]", re.IGNORECASE),
    "◁t": re.compile(r"◁/think▷"),
}

_TOKEN = re.compile(
    r"""\s+ | (?://|\#)[^\n]* | /\*.*?\*/
    | (?P<string>"(?:[^"\\]|\\.)*" | “[^”]*”)
    | (?P<single>'(?:[^'\\]|\\.)*')
    | (?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))
    | (?P<name>[A-Za-z_$][\w$]*)
    | (?P<mark>[\[\]{}:,])""",
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"true": "true", "false": "false", "null": "null", "none": "null", "undefined": "null"}
_UNKNOWN_ESCAPE = re.compile(r'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|(.))', re.DOTALL)
_CUT_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?$")
_CONTROL = re.compile(r"[\x00-\x1f]")
_CLOSING = {"{": "}", "[": "]"}


@attrs.frozen
class Found:
    """What is in a text."""

    values: list[str]
    """The objects and lists in it that are in no other, as JSON, in their order."""

    reasoning: str
    """What the model thought aloud before it answered, or between."""

    rest: str
    """The text without that."""


def find_values(text: str) -> Found:
    """Return the JSON values in a text, and what the model thought apart from them."""
    values: list[str] = []
    thoughts: list[str] = []
    rest: list[str] = []
    looked = place = rest_from = 0
    while (mark := _MARK.search(text, place)) and looked < LOOKED_AT_MOST:
        place = mark.end()
        if mark["value"]:
            value, end = _read_value(text, mark.start())
            if value is None:
                looked += end - mark.start()
            else:
                values.append(value)
                place = end
        elif mark["opens"]:
            rest.append(text[rest_from : mark.start()])
            thought, place = _thought_from(text, mark)
            thoughts.append(thought)
            rest_from = place
        else:  # Nothing opened it: a template did, before the model's first word.
            thoughts = [text[: mark.start()]]
            values.clear()
            rest.clear()
            rest_from = place
    rest.append(text[rest_from:])
    return Found(
        values, "\n\n".join(one.strip() for one in thoughts if one.strip()), "".join(rest).strip()
    )


def value_so_far(text: str) -> Any:
    """Return the last value in a text that may end in the midst of it; None if none has begun.

    Of a value that isn't whole, this is what has come: a string may be the beginning of one, and a
    number that may go on is left out.
    """
    looked = place = 0
    latest: Any = None
    while (mark := _MARK.search(text, place)) and looked < LOOKED_AT_MOST:
        place = mark.end()
        if mark["value"]:
            reader = _Reader(text, mark.start())
            if reader.read() or reader.ran_out:
                latest = json.loads(reader.json)
                place = reader.place
            else:
                looked += reader.place - mark.start()
        elif mark["opens"]:
            _, place = _thought_from(text, mark)
        else:
            latest = None
    return latest


def values_in_words(text: str) -> Iterator[str]:
    """Yield what may be meant as a number, a boolean or a string, as JSON, the likeliest first."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" \t`~")]
    last = lines[-1] if lines else ""
    for words in (text, last, last.rpartition(":")[2]):
        bare = words.strip().strip("*_`\"'“”").strip()
        bare = bare if bare[-1:] not in ".!" else bare[:-1].rstrip("*_`\"'“” ")
        yield from (bare, bare.lower(), json.dumps(bare))
    for found in reversed(list(re.finditer(r"-?\d[\d,]*(?:\.\d+)?(?![\w])|\b\w+\b", text))):
        word = found[0]
        if re.fullmatch(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?", word):
            word = word.replace(",", "")
        if word[0] in "-0123456789" or word.lower() in ("true", "false"):
            yield word.lower()


def _thought_from(text: str, mark: re.Match[str]) -> tuple[str, int]:
    """Return what was thought from a mark on, and where that ends: with the text, if nowhere."""
    ends = _END_OF_THOUGHTS.get(mark["opens"][:2].lower())
    if ends is None:
        name = re.escape(re.split(r"[\s>]", mark["opens"][1:], maxsplit=1)[0])
        ends = re.compile(rf"</{name}\s*>", re.IGNORECASE)
    end = ends.search(text, mark.end())
    if end is None:
        return text[mark.end() :], len(text)
    return text[mark.end() : end.start()], end.end()


def _read_value(text: str, start: int) -> tuple[str | None, int]:
    """Return the object or list that begins at ``start``, as JSON, and how far it was read."""
    try:
        _, end = _STRICT.raw_decode(text, start)
    except (ValueError, RecursionError):
        reader = _Reader(text, start)
        return (reader.json if reader.read() else None), reader.place
    return text[start:end], end


_STRICT = json.JSONDecoder()


class _Reader:
    """Reads one object or list, however it is written, as far as it goes."""

    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.place = start
        self.ran_out = False
        """Whether the text ended in the midst of it."""
        self._out: list[str] = []
        self._whole = 0
        """How much of that is left if what follows never comes: no key without its value."""
        self._open: list[str] = []
        self._before = ""
        """The last mark, or "value": it says what may follow."""

    @property
    def json(self) -> str:
        """What was read, as JSON; what is open is closed."""
        return "".join(self._out[: self._whole]) + "".join(_CLOSING[o] for o in self._open[::-1])

    def read(self) -> bool:
        """Return whether there is a whole value."""
        while token := _TOKEN.match(self.text, self.place):
            if token.lastgroup in ("name", "number") and token.end() == len(self.text):
                break  # It may go on.
            self.place = token.end()
            if token.lastgroup is not None and not self._take(token.lastgroup, token[0]):
                return False
            if token.lastgroup == "mark" and not self._open:
                return self._is_json()
        self._take_cut_string()
        rest = self.text[self.place :]
        self.ran_out = re.fullmatch(r"[-\w.]*", rest) is not None and self._is_json()
        if self.ran_out:
            self.place = len(self.text)
        return False

    def _is_json(self) -> bool:
        try:
            json.loads(self.json)
        except (ValueError, RecursionError):
            return False
        return True

    def _take(self, kind: str, token: str) -> bool:
        """Take a token; return whether it may be there."""
        if kind == "mark":
            return self._take_mark(token)
        if self._before == "value":
            return False
        is_key = self._is_at_key()
        if kind == "name":
            constant = _CONSTANTS.get(token.lower())
            if constant is None and not is_key:
                return False
            token = json.dumps(token) if constant is None or is_key else constant
        elif kind != "number":
            token = _string(token[1:-1], single=kind == "single")
        self._put(token, is_key=is_key)
        return True

    def _take_mark(self, mark: str) -> bool:
        if mark in "{[":
            if self._before == "value" or self._is_at_key():
                return False
            self._comma()
            self._open.append(mark)
            self._out.append(mark)
            self._whole = len(self._out)
            self._before = mark
        elif mark in "}]":
            if not self._open or _CLOSING[self._open[-1]] != mark or self._before == ":":
                return False
            self._open.pop()
            self._out.append(mark)
            self._whole = len(self._out)
            self._before = "value"
        elif mark == ":":
            if self._before != "key":
                return False
            self._out.append(":")
            self._before = ":"
        else:
            if self._before != "value":
                return False
            self._before = ","  # Written before what follows, if anything does.
        return True

    def _is_at_key(self) -> bool:
        return bool(self._open) and self._open[-1] == "{" and self._before in ("{", ",")

    def _comma(self) -> None:
        if self._before == ",":
            self._out.append(",")

    def _put(self, token: str, *, is_key: bool) -> None:
        self._comma()
        self._out.append(token)
        self._before = "key" if is_key else "value"
        if not is_key:
            self._whole = len(self._out)

    def _take_cut_string(self) -> None:
        """Take the beginning of a string at the end of the text; if it is a key, leave it out."""
        quote = self.text[self.place : self.place + 1]
        if quote not in ('"', "'") or self._before == "value":
            return
        begun = _CUT_ESCAPE.sub(r"\1", self.text[self.place + 1 :])
        self.place = len(self.text)
        if not self._is_at_key():
            self._put(_string(begun, single=quote == "'"), is_key=False)


def _string(inside: str, *, single: bool) -> str:
    """Return the inside of a string, however it was written, as a JSON string."""
    inside = _UNKNOWN_ESCAPE.sub(_escape, inside)
    if single or '"' in inside:
        inside = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', inside)
    return f'"{_CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], inside)}"'


def _escape(found: re.Match[str]) -> str:
    """Return an escape that JSON has as it is, and make one of any other."""
    if found[1]:
        return found[0]
    return "'" if found[2] == "'" else f"\\\\{found[2]}"
