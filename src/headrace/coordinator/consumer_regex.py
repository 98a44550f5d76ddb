"""Topic patterns of regex subscriptions, in RE2's syntax and with RE2's promise: no pattern is slow on any name.

A pattern becomes a small automaton that reads each character once (Python's `re` backtracks, and a client could stall
the broker with it). Topic names consist of 65 characters, so a character class is a bit mask over those.
"""

import unicodedata
from typing import NamedTuple

from headrace.errors import Err, KafkaError

ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"
"""All that a topic name can contain."""
BITS = {character: 1 << index for index, character in enumerate(ALPHABET)}
EVERY = (1 << len(ALPHABET)) - 1

REPEAT_MAX = 1000
DEPTH_MAX = 100
PROGRAM_MAX = 2000
"""Instructions of one automaton. RE2/J has no such limit: here it bounds what one character can cost."""
STATES_MAX = 1000
"""States remembered per pattern; beyond that the memory is dropped and filled again."""


def _mask(characters: str) -> int:
    return sum(BITS[c] for c in set(characters) if c in BITS)


def _category(*starts: str) -> int:
    return _mask("".join(c for c in ALPHABET if unicodedata.category(c).startswith(starts)))


_LOWER, _UPPER, _DIGITS = ALPHABET[:26], ALPHABET[26:52], ALPHABET[52:62]
_LETTERS = _mask(_LOWER + _UPPER)
_WORD = _mask(_LOWER + _UPPER + _DIGITS + "_")

_PERL = {"d": _mask(_DIGITS), "s": 0, "w": _WORD}
_POSIX = {
    "alnum": _mask(_LOWER + _UPPER + _DIGITS),
    "alpha": _LETTERS,
    "ascii": EVERY,
    "blank": 0,
    "cntrl": 0,
    "digit": _mask(_DIGITS),
    "graph": EVERY,
    "lower": _mask(_LOWER),
    "print": EVERY,
    "punct": _mask("._-"),
    "space": 0,
    "upper": _mask(_UPPER),
    "word": _WORD,
    "xdigit": _mask("0123456789abcdefABCDEF"),
}
_SCRIPT_NAMES = """
    Arabic Armenian Avestan Balinese Bamum Batak Bengali Bopomofo Brahmi Braille Buginese Buhid Canadian_Aboriginal
    Carian Cham Cherokee Common Coptic Cuneiform Cypriot Cyrillic Deseret Devanagari Egyptian_Hieroglyphs Ethiopic
    Georgian Glagolitic Gothic Greek Gujarati Gurmukhi Han Hangul Hanunoo Hebrew Hiragana Imperial_Aramaic Inherited
    Inscriptional_Pahlavi Inscriptional_Parthian Javanese Kaithi Kannada Katakana Kayah_Li Kharoshthi Khmer Lao Latin
    Lepcha Limbu Linear_B Lisu Lycian Lydian Malayalam Mandaic Meetei_Mayek Mongolian Myanmar New_Tai_Lue Nko Ogham
    Ol_Chiki Old_Italic Old_Persian Old_South_Arabian Old_Turkic Oriya Osmanya Phags_Pa Phoenician Rejang Runic
    Samaritan Saurashtra Shavian Sinhala Sundanese Syloti_Nagri Syriac Tagalog Tagbanwa Tai_Le Tai_Tham Tai_Viet Tamil
    Telugu Thaana Thai Tibetan Tifinagh Ugaritic Vai Yi"""
_SCRIPTS = frozenset(_SCRIPT_NAMES.split())
_CATEGORY_NAMES = "C Cc Cf Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps S Sc Sk Sm So Z Zl Zp Zs"
_CATEGORIES = frozenset(_CATEGORY_NAMES.split())
_ESCAPES = {"a": "\x07", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ALNUM = frozenset(_LOWER + _UPPER + _DIGITS)
# The only two characters outside ASCII that equal an ASCII letter when case is ignored: long s, and the Kelvin sign.
_FOLDED = {"\u017f": "s", "\u212a": "k"}


def _fold(mask: int) -> int:
    """The mask with both cases of each letter in it."""
    lower, upper = mask & _mask(_LOWER), (mask & _mask(_UPPER)) >> 26
    return mask | (lower << 26) | upper


# The parsed pattern ---------------------------------------------------------------------------------------------------


class _Set(NamedTuple):
    mask: int


class _Assert(NamedTuple):
    kind: str
    """One of ^ $ b B."""


class _Sequence(NamedTuple):
    parts: "list[_Node]"


class _Choice(NamedTuple):
    parts: "list[_Node]"


class _Repeat(NamedTuple):
    part: "_Node"
    least: int
    most: int | None


_Node = _Set | _Assert | _Sequence | _Choice | _Repeat


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._fold_case = False
        self._depth = 0
        self._names: set[str] = set()

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise self._error("unexpected )")
        return node

    def _error(self, what: str) -> KafkaError:
        shown = self._text if len(self._text) <= 200 else self._text[:200] + "..."
        return KafkaError(
            Err.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {what}",
        )

    def _more(self) -> bool:
        return self._at < len(self._text)

    def _peek(self, expected: str) -> bool:
        return self._text.startswith(expected, self._at)

    def _take(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        """Up to the closing parenthesis or the end."""
        choices = [self._sequence()]
        while self._peek("|"):
            self._at += 1
            choices.append(self._sequence())
        return choices[0] if len(choices) == 1 else _Choice(choices)

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        after_repeat = False
        while self._more() and self._text[self._at] not in "|)":
            character = self._text[self._at]
            limits = self._repeat_limits(character)
            if limits is not None:
                if self._peek("?"):
                    self._at += 1  # lazy or greedy: the same names match
                if after_repeat:
                    raise self._error("invalid nested repetition operator")
                if not parts:
                    raise self._error("missing argument to repetition operator")
                parts[-1] = _Repeat(parts[-1], *limits)
            elif character == "(":
                self._group(parts)
            else:
                self._atom(parts)
            # A `{` that starts no count is a literal, yet RE2/J still takes it for a repetition here.
            after_repeat = limits is not None or character == "{"
        return parts[0] if len(parts) == 1 else _Sequence(parts)

    def _repeat_limits(self, character: str) -> tuple[int, int | None] | None:
        simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(character)
        if simple is not None:
            self._at += 1
            return simple
        if character != "{":
            return None
        start = self._at
        self._at += 1
        least = self._number()
        most: int | None = least
        if least is not None and self._peek(","):
            self._at += 1
            if self._peek("}"):
                most = None
            else:
                most = self._number()
                least = None if most is None else least
        if least is None or not self._peek("}"):
            self._at = start
            return None
        self._at += 1
        if least > REPEAT_MAX or (most is not None and (most > REPEAT_MAX or least > most)):
            raise self._error("invalid repeat count")
        return least, most

    def _number(self) -> int | None:
        start = self._at
        while self._more() and "0" <= self._text[self._at] <= "9":
            self._at += 1
        digits = self._text[start : self._at]
        if not digits or (len(digits) > 1 and digits[0] == "0"):
            return None
        return int(digits) if len(digits) <= 8 else REPEAT_MAX + 1

    def _group(self, parts: list[_Node]) -> None:
        fold_case = self._fold_case
        if self._peek("(?P<") or self._peek("(?<"):
            self._group_name()
        elif self._peek("(?"):
            self._at += 2
            if self._flags() == ")":
                return  # they hold until the enclosing group ends
        else:
            self._at += 1
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._error("nested too deeply")
        parts.append(self._choice())
        if not self._more():
            raise self._error("missing closing )")
        self._at += 1
        self._depth -= 1
        self._fold_case = fold_case

    def _group_name(self) -> None:
        start = self._text.index("<", self._at) + 1
        end = self._text.find(">", start)
        name = self._text[start:end]
        if end < 0 or not name or not all(c == "_" or c in _ALNUM for c in name):
            raise self._error("invalid named capture")
        if name in self._names:
            raise self._error("duplicate capture group name")
        self._names.add(name)
        self._at = end + 1

    def _flags(self) -> str:
        """Sets the flags after "(?"; what ends them, ":" or ")"."""
        negative = seen = False
        fold_case = self._fold_case
        while self._more():
            character = self._take()
            if character in "imsU":
                seen = True
                if character == "i":
                    fold_case = not negative
            elif character == "-" and not negative:
                negative, seen = True, False
            elif character in ":)" and (seen or not negative):
                self._fold_case = fold_case
                return character
            else:
                break
        raise self._error("invalid or unsupported Perl syntax")

    def _atom(self, parts: list[_Node]) -> None:
        character = self._take()
        if character in "^$":
            parts.append(_Assert(character))
        elif character == ".":
            parts.append(_Set(EVERY))
        elif character == "[":
            parts.append(_Set(self._class()))
        elif character == "\\":
            self._escaped(parts)
        else:
            parts.append(_Set(self._literal(character)))

    def _literal(self, character: str) -> int:
        if not self._fold_case:
            return BITS.get(character, 0)
        return _fold(BITS.get(_FOLDED.get(character, character), 0))

    def _escaped(self, parts: list[_Node]) -> None:
        """After a backslash, outside a class."""
        assertion = {"A": "^", "b": "b", "B": "B", "z": "$"}.get(self._text[self._at : self._at + 1])
        if assertion is not None:
            self._at += 1
            parts.append(_Assert(assertion))
        elif self._peek("Q"):
            end = self._text.find("\\E", self._at + 1)
            quoted = self._text[self._at + 1 : end if end >= 0 else None]
            self._at = len(self._text) if end < 0 else end + 2
            parts.extend(_Set(self._literal(c)) for c in quoted)
        else:
            mask = self._class_escape()
            parts.append(_Set(self._literal(self._escape()) if mask is None else mask))

    def _class_escape(self) -> int | None:
        r"""\d, \pL and their like, after the backslash."""
        kind = self._text[self._at : self._at + 1]
        if kind in ("p", "P"):
            self._at += 1
            return self._unicode_class(negated=kind == "P")
        mask = _PERL.get(kind.lower()) if kind else None
        if mask is None:
            return None
        self._at += 1
        return EVERY & ~mask if kind.isupper() else mask

    def _unicode_class(self, negated: bool) -> int:
        if not self._more():
            raise self._error("invalid character class range")
        name = self._take()
        if name == "{":
            end = self._text.find("}", self._at)
            if end < 0:
                raise self._error("invalid character class range")
            name = self._text[self._at : end]
            self._at = end + 1
        if name.startswith("^"):
            name, negated = name[1:], not negated
        if name in _CATEGORIES:
            mask = _category(name)
        elif name == "Any":
            mask = EVERY
        elif name in _SCRIPTS:
            mask = {"Latin": _LETTERS, "Common": EVERY & ~_LETTERS}.get(name, 0)
        else:
            raise self._error("invalid character class range")
        if self._fold_case:
            mask = _fold(mask)
        return EVERY & ~mask if negated else mask

    def _escape(self) -> str:
        """One character, after a backslash."""
        if not self._more():
            raise self._error("trailing backslash at end of expression")
        character = self._take()
        if character in "01234567":
            digits = character
            while len(digits) < 3 and self._more() and self._text[self._at] in "01234567":
                digits += self._take()
            if character == "0" or len(digits) > 1:
                return chr(int(digits, 8))
        elif character == "x":
            return self._hex_escape()
        elif character in _ESCAPES:
            return _ESCAPES[character]
        elif character not in _ALNUM:
            return character
        raise self._error("invalid escape sequence")

    def _hex_escape(self) -> str:
        if self._peek("{"):
            end = self._text.find("}", self._at)
            digits = self._text[self._at + 1 : end] if end >= 0 else ""
            self._at = end + 1
        else:
            digits = self._text[self._at : self._at + 2]
            self._at += 2
            if len(digits) != 2:
                digits = ""
        if not digits or any(c not in "0123456789abcdefABCDEF" for c in digits):
            raise self._error("invalid escape sequence")
        code = int(digits.lstrip("0")[:7] or "0", 16)
        if code > 0x10FFFF:
            raise self._error("invalid escape sequence")
        return chr(code)

    def _class(self) -> int:
        """After the opening bracket."""
        negated = self._peek("^")
        self._at += negated
        mask = 0
        first = True
        while first or not self._peek("]"):
            first = False
            if self._peek("[:") and (end := self._text.find(":]", self._at)) >= 0:
                mask |= self._posix_class(self._text[self._at + 2 : end])
                self._at = end + 2
                continue
            if self._peek("\\"):
                self._at += 1
                named = self._class_escape()
                if named is not None:
                    mask |= named
                    continue
                self._at -= 1
            mask |= self._range()
        self._at += 1
        return EVERY & ~mask if negated else mask

    def _posix_class(self, name: str) -> int:
        negated = name.startswith("^")
        mask = _POSIX.get(name[negated:])
        if mask is None:
            raise self._error("invalid character class range")
        if self._fold_case:
            mask = _fold(mask)
        return EVERY & ~mask if negated else mask

    def _range(self) -> int:
        low = high = self._class_character()
        if self._peek("-") and not self._peek("-]"):
            self._at += 1
            high = self._class_character()
            if high < low:
                raise self._error("invalid character class range")
        mask = sum(bit for character, bit in BITS.items() if low <= character <= high)
        if self._fold_case:
            for other, same in _FOLDED.items():
                mask |= BITS[same] if low <= other <= high else 0
            mask = _fold(mask)
        return mask

    def _class_character(self) -> str:
        if not self._more():
            raise self._error("missing closing ]")
        character = self._take()
        return self._escape() if character == "\\" else character


# The automaton --------------------------------------------------------------------------------------------------------

_SET, _SPLIT, _ASSERT, _MATCH = range(4)
_Instruction = tuple[int, int, int]
"""(_SET, mask, next), (_SPLIT, one, other), (_ASSERT, bit of the kind, next), (_MATCH, 0, 0)."""
_AT_START, _AT_END, _AT_BOUNDARY, _WITHIN = 1, 2, 4, 8
_KINDS = {"^": _AT_START, "$": _AT_END, "b": _AT_BOUNDARY, "B": _WITHIN}


def _size(node: _Node) -> int:
    if isinstance(node, _Repeat):
        optional = 1 if node.most is None else node.most - node.least
        return node.least * _size(node.part) + optional * (_size(node.part) + 1)
    if isinstance(node, _Sequence | _Choice):
        return sum(map(_size, node.parts)) + len(node.parts)
    return 1


def _compile(node: _Node, following: int, program: list[_Instruction]) -> int:
    """Adds the instructions of `node`, which go on with `following`; where they start."""

    def add(instruction: _Instruction) -> int:
        program.append(instruction)
        return len(program) - 1

    if isinstance(node, _Set):
        return add((_SET, node.mask, following))
    if isinstance(node, _Assert):
        return add((_ASSERT, _KINDS[node.kind], following))
    if isinstance(node, _Sequence):
        for part in reversed(node.parts):
            following = _compile(part, following, program)
        return following
    if isinstance(node, _Choice):
        start = _compile(node.parts[-1], following, program)
        for part in reversed(node.parts[:-1]):
            start = add((_SPLIT, _compile(part, following, program), start))
        return start
    start = following
    if node.most is None:
        start = add((_SPLIT, following, following))
        program[start] = (_SPLIT, _compile(node.part, start, program), following)
    else:
        for _ in range(node.most - node.least):
            start = add((_SPLIT, _compile(node.part, start, program), following))
    for _ in range(node.least):
        start = _compile(node.part, start, program)
    return start


class _State:
    """Where the automaton can be before a character, and where each character leads."""

    __slots__ = ("accepts", "after_word", "at_start", "next", "places")

    def __init__(self, places: frozenset[int], at_start: bool, after_word: bool) -> None:
        self.places = places
        self.at_start = at_start
        self.after_word = after_word
        self.next: dict[str, _State] = {}
        self.accepts: bool | None = None


class TopicPattern:
    """A compiled pattern. Raises KafkaError(INVALID_REGULAR_EXPRESSION) for what RE2 would not take."""

    def __init__(self, pattern: str) -> None:
        parser = _Parser(pattern)
        node = parser.parse()
        if _size(node) >= PROGRAM_MAX:
            raise parser._error("too large")
        self.pattern = pattern
        self.work = 0
        """Instructions looked at so far, to share the loop fairly."""
        self._program: list[_Instruction] = [(_MATCH, 0, 0)]
        start = _compile(node, 0, self._program)
        self._boundaries = any(op == _ASSERT and kind in (_AT_BOUNDARY, _WITHIN) for op, kind, _ in self._program)
        self._states: dict[tuple[frozenset[int], bool, bool], _State] = {}
        self._start = self._state(frozenset((start,)), True, False)

    def matches(self, name: str) -> bool:
        """The whole name."""
        state = self._start
        for character in name:
            following = state.next.get(character)
            state = self._step(state, character) if following is None else following
            if not state.places:
                return False
        self.work += len(name)
        if state.accepts is None:
            state.accepts = any(self._program[at][0] == _MATCH for at in self._reach(state, None))
        return state.accepts

    def _state(self, places: frozenset[int], at_start: bool, after_word: bool) -> _State:
        key = (places, at_start, after_word and self._boundaries)
        state = self._states.get(key)
        if state is None:
            if len(self._states) >= STATES_MAX:
                for old in self._states.values():
                    old.next.clear()
                self._states.clear()
            state = self._states[key] = _State(*key)
        return state

    def _step(self, state: _State, character: str) -> _State:
        bit = BITS.get(character, 0)
        places = frozenset(
            following
            for op, mask, following in map(self._program.__getitem__, self._reach(state, character))
            if op == _SET and mask & bit
        )
        following = self._state(places, False, bool(bit & _WORD))
        state.next[character] = following
        return following

    def _reach(self, state: _State, character: str | None) -> set[int]:
        """Places reached without reading, knowing what was read last and what comes."""
        before_word = character is not None and bool(BITS.get(character, 0) & _WORD)
        holds = _AT_START if state.at_start else 0
        holds |= _AT_END if character is None else 0
        holds |= _AT_BOUNDARY if before_word != state.after_word else _WITHIN
        reached = set(state.places)
        pending = list(reached)
        while pending:
            op, one, other = self._program[pending.pop()]
            targets: tuple[int, ...] = ()
            if op == _SPLIT:
                targets = (one, other)
            elif op == _ASSERT and one & holds:
                targets = (other,)
            for target in targets:
                if target not in reached:
                    reached.add(target)
                    pending.append(target)
        self.work += len(reached)
        return reached
