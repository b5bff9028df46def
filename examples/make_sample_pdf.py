"""Make a sample PDF with chapters: `python examples/make_sample_pdf.py handbook.pdf --pages 60`.

The text is a made-up handbook of a lighthouse and its harbour. The PDF is written by hand (text pages, one standard
font, compressed), so nothing has to be installed.
"""

import argparse
import sys
import textwrap
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TITLE = "The Handbook of Marrow Point"
WORDS_A_PAGE = 215
LINE_LETTERS = 84
PAGE_LINES = 44


class Subject(NamedTuple):
    """What a chapter is about: its thing with parts, tools and faults, who sees to it, when, and why it matters."""

    title: str
    thing: str
    parts: list[str]
    tools: list[str]
    faults: list[str]
    who: str
    when: str
    why: str


CHAPTERS: list[Subject] = [
    Subject(
        title="The Lamp",
        thing="lamp",
        parts=["wick", "burner", "oil reservoir", "mantle", "glass chimney"],
        tools=["linen cloth", "brass trimmer", "filling can"],
        faults=["smoke blackens the chimney", "the flame flickers in a north wind", "water gets into the oil"],
        who="the first keeper",
        when="at dusk",
        why="ships forty miles out steer by its light",
    ),
    Subject(
        title="The Lens and the Clockwork",
        thing="lens",
        parts=["prism", "bull's-eye", "rotation gear", "driving weight", "mercury bath"],
        tools=["chamois leather", "spirit of wine", "gear oil"],
        faults=["salt films the prisms", "the gear loses four seconds an hour", "a prism works loose"],
        who="the second keeper",
        when="before every watch",
        why="sailors know the light by the rhythm of its flash",
    ),
    Subject(
        title="The Fog Signal",
        thing="fog signal",
        parts=["compressor", "air tank", "diaphragm horn", "timing valve", "pressure gauge"],
        tools=["valve key", "spare diaphragm", "grease pump"],
        faults=["the diaphragm splits", "frost blocks the valve", "the tank leaks overnight"],
        who="the engineer",
        when="as soon as the far buoy is hidden",
        why="in fog the ear must do what the eye cannot",
    ),
    Subject(
        title="Weather and the Log",
        thing="weather log",
        parts=["barometer", "wind vane", "rain gauge", "thermometer", "cloud table"],
        tools=["ink pen", "ruled book", "pocket watch"],
        faults=["a reading is skipped", "two hands write in one column", "the barometer sticks"],
        who="the keeper on watch",
        when="every three hours",
        why="the forecast office trusts only an unbroken series",
    ),
    Subject(
        title="Tides and Moorings",
        thing="mooring",
        parts=["bollard", "chain", "spring line", "fender", "tide board"],
        tools=["boat hook", "heaving line", "splicing fid"],
        faults=["a line chafes through", "the chain drags at spring tide", "a fender bursts"],
        who="the harbour master",
        when="an hour before high water",
        why="a boat that breaks loose sinks two others",
    ),
    Subject(
        title="The Pilot Boats",
        thing="pilot boat",
        parts=["hull", "mast", "signal flag", "bilge pump", "boarding ladder"],
        tools=["oilskins", "hand lead", "storm lantern"],
        faults=["the pump clogs", "the ladder ices over", "the crew is one short"],
        who="the senior pilot",
        when="when a ship shows a blue flag",
        why="no stranger finds the channel alone",
    ),
    Subject(
        title="Stores and Provisions",
        thing="store",
        parts=["flour bin", "water cistern", "coal cellar", "oil cellar", "medicine shelf"],
        tools=["tally board", "spring balance", "sealing wax"],
        faults=["damp spoils the flour", "the cistern turns brackish", "the tally does not add up"],
        who="the storekeeper",
        when="on the first day of the month",
        why="the supply ship may be late by six weeks in winter",
    ),
    Subject(
        title="Signals and Flags",
        thing="signal mast",
        parts=["halyard", "yardarm", "pennant", "code book", "signal lamp"],
        tools=["telescope", "flag locker", "message slate"],
        faults=["a flag fouls the halyard", "an answer is misread", "the code book is out of date"],
        who="the signalman",
        when="whenever a vessel asks",
        why="a wrong hoist sends a ship onto the reef",
    ),
    Subject(
        title="Rescue from the Shore",
        thing="rescue station",
        parts=["lifeboat", "line rocket", "breeches buoy", "slipway", "alarm bell"],
        tools=["cork jacket", "rocket tripod", "dry blankets"],
        faults=["the rocket line tangles", "the slipway is silted", "volunteers come late"],
        who="the coxswain",
        when="at the third stroke of the alarm bell",
        why="cold water gives a swimmer twenty minutes",
    ),
    Subject(
        title="Repairs and Masonry",
        thing="tower",
        parts=["gallery", "stone course", "iron stair", "lightning rod", "storm shutter"],
        tools=["lime mortar", "plumb line", "cold chisel"],
        faults=["frost lifts a stone", "rust eats the stair", "the rod loses its ground"],
        who="the mason",
        when="in the dry weeks of June",
        why="a crack of one winter is a breach of the next",
    ),
    Subject(
        title="Health and Rest",
        thing="watch bill",
        parts=["sleeping quarters", "kitchen", "sickroom", "bathhouse", "library"],
        tools=["duty board", "tonic bottle", "alarm clock"],
        faults=["a keeper falls asleep", "fever runs through the house", "two watches follow each other"],
        who="the eldest keeper",
        when="on Sunday after the noon meal",
        why="a tired keeper is more dangerous than a broken lamp",
    ),
    Subject(
        title="Visitors, Pay and Letters",
        thing="office",
        parts=["pay chest", "letter bag", "visitor book", "rule board", "account ledger"],
        tools=["iron key", "stamp pad", "receipt roll"],
        faults=["a receipt is missing", "visitors climb without leave", "the post boat sails early"],
        who="the superintendent",
        when="on the last Friday of the quarter",
        why="the Board pays only for what is written down",
    ),
]

FRAMES = [
    "The {part} of the {thing} is inspected {when}, and {who} signs for it.",
    "Before anyone touches the {part}, the {tool} is laid ready and counted.",
    "If {fault}, the work stops and {who} is called at once.",
    "New hands learn the {part} first, because {why}.",
    "A {tool} that is worn is replaced the same day; it is never put back beside the {part}.",
    "The log of {year} tells how {fault}, and how the Board then ordered a second {part}.",
    "Two people check the {part} together: one reads the rule aloud, the other works with the {tool}.",
    "The {thing} has no spare {part} on the upper floor; the spare lies in the cellar, {count} steps below.",
    "When {fault}, the cause is nearly always the {part} and seldom the {tool}.",
    "{Who} keeps a list of every {part} that was changed, with the date and the reason.",
    "Nobody leaves the {thing} alone for longer than {count} minutes.",
    "The {part} must be dry, clean and free of salt before the {tool} is used on it.",
    "It is better to report the {thing} too early than too late, since {why}.",
    "For practice the {part} is taken apart in daylight and put together again in the dark.",
    "A note in the log says what was done to the {part}, who held the {tool}, and how long it took.",
    "Every {count} days the {part} is weighed or measured, and the figure is compared with the one before.",
    "If {fault} twice in one month, the {thing} is taken out of service and the superintendent is told.",
    "The rule about the {part} is from the winter of {year} and ends with a warning: if {fault}, people get hurt.",
    "Work on the {thing} begins {when} and ends before the next watch comes up the stair.",
    "Remember why the {thing} is there: {why}.",
    "With the {tool} in the left hand and the {part} in sight, a keeper can do the work in {count} minutes.",
    "Inspectors ask about the {part} more than about anything else in this chapter.",
    "Should {who} be ill, the deputy takes over the {thing} and writes both names into the log.",
    "The {tool} is kept on its hook beside the {part}, and an empty hook is reported {when}.",
]


class Turns:
    """Takes the items of lists in turn, each list at its own pace: varied, and the same on every machine."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def take(self, name: str, items: list[str]) -> str:
        at = self._at.get(name, -1) + 1
        self._at[name] = at
        return items[(at + at // len(items)) % len(items)]


def sentences(number: int) -> Iterator[str]:
    """Yield sentences about one chapter's subject without end."""
    subject = CHAPTERS[number % len(CHAPTERS)]
    turns = Turns()
    at = number
    while True:
        yield FRAMES[at % len(FRAMES)].format(
            thing=subject.thing,
            part=turns.take("part", subject.parts),
            tool=turns.take("tool", subject.tools),
            fault=turns.take("fault", subject.faults),
            who=subject.who,
            Who=subject.who[0].upper() + subject.who[1:],
            when=subject.when,
            why=subject.why,
            year=1851 + (at * 7 + number * 11) % 58,
            count=5 + (at * 3 + number) % 37,
        )
        at += 7 if len(FRAMES) % 7 else 5


def chapter_pages(number: int, pages: int) -> list[list[str]]:
    """Return the lines of a chapter's pages; the first begins with its heading."""
    title = CHAPTERS[number % len(CHAPTERS)].title
    source = sentences(number)
    made = []
    for page in range(pages):
        lines = [f"Chapter {number + 1} {title}", ""] if page == 0 else []
        words = 0
        while words < WORDS_A_PAGE and len(lines) < PAGE_LINES - 8:
            paragraph = " ".join(next(source) for _ in range(4))
            words += len(paragraph.split())
            lines += [*textwrap.wrap(paragraph, LINE_LETTERS), ""]
        made.append(lines[:PAGE_LINES])
    return made


def handbook(pages: int) -> list[list[str]]:
    """Return the lines of all pages, the chapters of about equal length."""
    count = min(len(CHAPTERS), pages)
    shares = [pages // count + (1 if number < pages % count else 0) for number in range(count)]
    made = [page for number, share in enumerate(shares) for page in chapter_pages(number, share)]
    return [[*page, "", f"{TITLE} - page {number}"] for number, page in enumerate(made, 1)]


def as_pdf(pages: list[list[str]]) -> bytes:
    """Return the file: catalog, page tree, font, then a page and its content for each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Times-Roman /Encoding /WinAnsiEncoding >>",
    ]
    for number, lines in enumerate(pages):
        content = zlib.compress(_content(lines))
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode(),
            b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(content), content),
        ]
    return _file(objects)


def _content(lines: list[str]) -> bytes:
    shown = []
    for line in lines:
        escaped = line.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")
        size = 16 if line.startswith("Chapter ") else 11
        shown.append(f"/F1 {size} Tf ({escaped}) Tj T*")
    return ("BT 16 TL 60 790 Td\n" + "\n".join(shown) + "\nET").encode("cp1252")


def _file(objects: list[bytes]) -> bytes:
    out = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, table)
    return bytes(out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a sample PDF with chapters.")
    parser.add_argument("output", type=Path, help="the file to write")
    parser.add_argument("--pages", type=int, default=60, help="1 to 1000 (default 60)")
    arguments = parser.parse_args()
    if not 1 <= arguments.pages <= 1000:
        parser.error("--pages must be 1 to 1000")
    data = as_pdf(handbook(arguments.pages))
    arguments.output.write_bytes(data)
    sys.stdout.write(f"{arguments.output}: {arguments.pages} pages, {len(data):,} bytes\n")


if __name__ == "__main__":
    main()
