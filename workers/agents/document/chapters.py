"""Chapters of a text: found by its headings, or made of equal parts where it has none; never too many."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

CHAPTERS_MAX = 12
PART_CHARACTERS = 12_000  # a text without headings is cut into parts of about this size
LEAST_BODY = 80  # less text than this under a heading: a line of a table of contents
LEAST_FRONT = 400  # less text than this before the first heading belongs to the first chapter
LEAST_DISTANCE = 300  # numbered lines closer than this on average are a list, not headings
TITLE_MAX = 120

_word_numbers = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen"
_worded = re.compile(
    r"(?:(?:chapter|part|section|appendix|kapitel|teil|abschnitt|chapitre|partie|cap[ií]tulo|capitolo|parte|hoofdstuk|deel"
    rf"|kapittel|rozdzia[łl]|глава|часть)\s+(?:\d{{1,3}}|[ivxlc]{{1,7}}|[a-z]|{_word_numbers})\b[^\n]{{0,100}}"
    r"|第\s*[\d一二三四五六七八九十百]{1,4}\s*[章部节節回][^\n]{0,60})",
    re.IGNORECASE,
)
_label = re.compile(r"\S+\s*\S+")
_markdown = re.compile(r"(#{1,6})\s+(\S.{0,150}?)\s*#*")
_numbered = re.compile(r"(\d{1,2})[.)]?\s+([^\W\d_][^\n]{1,90})")
_leader = re.compile(r"(?:\.\s?){4,}\s*\d*$|…\s*\d+$")


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter: its title and its text, without the heading line."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class _Heading:
    line: int  # its first line
    body: int  # the first line after it
    key: str  # the same key again is a running head, or an entry of the table of contents
    title: str


def find_chapters(text: str, name: str) -> list[Chapter]:
    """Return 1 to CHAPTERS_MAX chapters that together hold the whole text."""
    lines = text.split("\n")
    for find in (_markdown_headings, _worded_headings, _numbered_headings):
        chapters = _cut(lines, find(lines), name)
        if len(chapters) > 1:
            return _merged(chapters)
    return _parts(text, name)


def _cut(lines: list[str], headings: list[_Heading], name: str) -> list[Chapter]:
    """Return the text between the headings; entries of a table of contents are no chapters."""
    if len(headings) < 2:
        return []
    ends = [heading.line for heading in headings[1:]] + [len(lines)]
    found = [(h, "\n".join(lines[h.body : end]).strip()) for h, end in zip(headings, ends, strict=True)]
    longest: dict[str, int] = {}
    for heading, body in found:
        longest[heading.key] = max(len(body), longest.get(heading.key, 0))
    chapters = [
        Chapter(heading.title[:TITLE_MAX], body)
        for heading, body in found
        if body and (len(body) >= LEAST_BODY or longest[heading.key] == len(body))
    ]
    front = "\n".join(lines[: headings[0].line]).strip()
    if chapters and len(front) >= LEAST_FRONT:
        chapters.insert(0, Chapter(name, front))
    elif chapters and front:
        chapters[0] = Chapter(chapters[0].title, f"{front}\n\n{chapters[0].text}")
    return chapters


def _markdown_headings(lines: list[str]) -> list[_Heading]:
    """Return the headings of the highest level that occurs more than once; fenced code is no heading."""
    by_level: dict[int, list[_Heading]] = {}
    fenced = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        found = None if fenced else _markdown.fullmatch(line.strip())
        if found:
            heading = _Heading(number, number + 1, f"{number}", found[2])
            by_level.setdefault(len(found[1]), []).append(heading)
    return next((by_level[level] for level in sorted(by_level) if len(by_level[level]) > 1), [])


def _worded_headings(lines: list[str]) -> list[_Heading]:
    """Return lines such as "Chapter 3 The Lamp", each once in a row; a bare label takes the next line as its title."""
    headings: list[_Heading] = []
    for number, raw in enumerate(lines):
        line = raw.strip()
        if not _worded.fullmatch(line) or _leader.search(line):
            continue
        label = _label.match(line)
        if _is_sentence(line, line[label.end() :] if label else ""):
            continue
        key = (label[0] if label else line).casefold().rstrip(":.-\u2013\u2014 ")
        if headings and headings[-1].key == key:
            continue
        title, body = line, number + 1
        following = lines[body].strip() if body < len(lines) else ""
        if line.casefold().rstrip(":.") == key and 0 < len(following) <= 80 and following[-1] not in ".!?;,":
            title, body = f"{line.rstrip(':.')}: {following}", body + 1
        headings.append(_Heading(number, body, key, title))
    return headings


def _is_sentence(line: str, rest: str) -> bool:
    """Whether a line is a sentence that only begins like a heading: "Chapter 2 tells of …"."""
    return line[-1] in ",;" or rest.strip(" :.-")[:1].islower() or (line[-1] == "." and line.count(" ") > 7)


def _numbered_headings(lines: list[str]) -> list[_Heading]:
    """Return "1 Purpose", "2 Tools", … when they count up from 1 and lie far enough apart to be headings."""
    headings: list[_Heading] = []
    for number, raw in enumerate(lines):
        line = raw.strip()
        found = _numbered.fullmatch(line)
        if not found or int(found[1]) != len(headings) + 1 or line[-1] in ".,;:!?" or _leader.search(line):
            continue
        headings.append(_Heading(number, number + 1, found[1], line))
    if len(headings) < 2:
        return []
    size = sum(len(line) for line in lines[headings[0].line :])
    return headings if size / len(headings) >= LEAST_DISTANCE else []


def _merged(chapters: list[Chapter]) -> list[Chapter]:
    """Join the neighbours that are shortest together until few enough chapters are left."""
    groups = [[chapter] for chapter in chapters]
    sizes = [len(chapter.text) for chapter in chapters]
    while len(groups) > CHAPTERS_MAX:
        at = min(range(len(groups) - 1), key=lambda i: sizes[i] + sizes[i + 1])
        groups[at] += groups.pop(at + 1)
        sizes[at] += sizes.pop(at + 1)
    return [_joined(group) for group in groups]


def _joined(group: list[Chapter]) -> Chapter:
    if len(group) == 1:
        return group[0]
    title = f"{group[0].title} to {group[-1].title}"[:TITLE_MAX]
    return Chapter(title, "\n\n".join(f"{chapter.title}\n\n{chapter.text}" for chapter in group))


def _parts(text: str, name: str) -> list[Chapter]:
    """Cut a text without headings into parts of about equal size, at blank lines or line ends where there are any."""
    count = max(1, min(CHAPTERS_MAX, round(len(text) / PART_CHARACTERS)))
    if count == 1:
        return [Chapter(name, text.strip())]
    pieces = list(_equal(text.strip(), count))
    return [Chapter(f"Part {number}", piece) for number, piece in enumerate(pieces, 1)]


def _equal(text: str, count: int) -> Iterator[str]:
    begin = 0
    for number in range(1, count):
        goal = len(text) * number // count
        end = _break_near(text, goal, max(begin + 1, goal - 2000))
        yield text[begin:end].strip()
        begin = end
    yield text[begin:].strip()


def _break_near(text: str, goal: int, least: int) -> int:
    searches: list[Callable[[], int]] = [
        lambda: text.rfind("\n\n", least, goal),
        lambda: text.rfind("\n", least, goal),
        lambda: text.rfind(" ", least, goal),
    ]
    return next((at for at in (search() for search in searches) if at > 0), goal)
