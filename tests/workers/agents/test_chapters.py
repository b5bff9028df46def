"""Chapters of a text."""

from workers.agents.document.chapters import CHAPTERS_MAX, find_chapters

BODY = "The keeper climbs the stair and trims the lamp before the night begins. " * 8


def titles(text: str) -> list[str]:
    return [chapter.title for chapter in find_chapters(text, "book.pdf")]


def test_worded_headings_make_chapters_and_keep_all_text():
    text = f"Chapter 1 The Lamp\n{BODY}\nChapter 2 The Lens\n{BODY}\nChapter 3\nThe Horn\n{BODY}"

    chapters = find_chapters(text, "book.pdf")

    assert [c.title for c in chapters] == ["Chapter 1 The Lamp", "Chapter 2 The Lens", "Chapter 3: The Horn"]
    assert all(c.text == BODY.strip() for c in chapters)


def test_other_languages_are_known():
    assert titles(f"Kapitel 1: Die Lampe\n{BODY}\nKapitel 2: Die Linse\n{BODY}") == [
        "Kapitel 1: Die Lampe",
        "Kapitel 2: Die Linse",
    ]
    assert titles(f"第一章 灯\n{BODY}\n第二章 鏡\n{BODY}") == ["第一章 灯", "第二章 鏡"]


def test_table_of_contents_and_running_heads_are_no_chapters():
    contents = "Contents\nChapter 1 The Lamp ........ 3\nChapter 1 The Lamp\nChapter 2 The Lens\n"
    text = f"{contents}\nChapter 1 The Lamp\n{BODY}\nChapter 1 The Lamp\n{BODY}\nChapter 2 The Lens\n{BODY}"

    assert titles(text) == ["Chapter 1 The Lamp", "Chapter 2 The Lens"]


def test_a_sentence_about_a_chapter_is_no_heading():
    text = f"Chapter 1 The Lamp\n{BODY}\nChapter 2 tells of the lens, and\n{BODY}\nChapter 2 The Lens\n{BODY}"

    assert titles(text) == ["Chapter 1 The Lamp", "Chapter 2 The Lens"]


def test_markdown_takes_the_highest_level_that_repeats_and_skips_code():
    text = f"# Book\n\n## Lamp\n{BODY}\n```\n## not a heading\n```\n### Detail\n{BODY}\n## Lens\n{BODY}"

    assert titles(text) == ["Lamp", "Lens"]


def test_numbered_headings_count_up_but_a_list_is_no_headings():
    assert titles(f"1 Purpose\n{BODY}\n2 Tools\n{BODY}\n3. Faults\n{BODY}") == ["1 Purpose", "2 Tools", "3. Faults"]
    assert titles("1 Bread\n2 Milk\n3 Salt\n4 Oil") == ["book.pdf"]


def test_many_small_chapters_are_merged_and_nothing_is_lost():
    text = "\n".join(f"Chapter {n} Matter\nMark{n}. {BODY}" for n in range(1, 41))

    chapters = find_chapters(text, "book.pdf")

    assert len(chapters) == CHAPTERS_MAX
    assert all(f"Mark{n}." in "".join(c.text for c in chapters) for n in range(1, 41))
    assert chapters[0].title.startswith("Chapter 1 Matter to Chapter ")


def test_text_without_headings_is_cut_into_equal_parts():
    paragraph = BODY + "\n\n"
    text = paragraph * 100

    chapters = find_chapters(text, "book.pdf")

    assert [c.title for c in chapters] == [f"Part {n}" for n in range(1, len(chapters) + 1)]
    assert 3 <= len(chapters) <= CHAPTERS_MAX
    assert "".join("".join(c.text.split()) for c in chapters) == "".join(text.split())


def test_text_before_the_first_heading_is_kept():
    short = find_chapters(f"A dedication.\nChapter 1 A\n{BODY}\nChapter 2 B\n{BODY}", "book.pdf")
    long = find_chapters(f"{BODY}\nChapter 1 A\n{BODY}\nChapter 2 B\n{BODY}", "book.pdf")

    assert short[0].text.startswith("A dedication.")
    assert [c.title for c in long] == ["book.pdf", "Chapter 1 A", "Chapter 2 B"]
