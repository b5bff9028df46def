"""Text from files, and clear sentences for files without any."""

import subprocess
import sys
from contextlib import suppress
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from runs.outcomes import ErrorClass, InvalidInput
from workers.agents.document.extract import read_file, read_text

EXAMPLE = Path(__file__).parents[3] / "examples" / "make_sample_pdf.py"


def read(data: bytes, name: str = "file", content_type: str = "text/plain"):
    return read_file(data, name, content_type, lambda: False)


@pytest.fixture(scope="session")
def sample_pdf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sample") / "handbook.pdf"
    subprocess.run([sys.executable, str(EXAMPLE), str(path)], check=True, capture_output=True)
    return path.read_bytes()


def rewritten(data: bytes, **encryption: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(BytesIO(data)))
    if encryption:
        writer.encrypt(algorithm="RC4-128", **encryption)
    out = BytesIO()
    writer.write(out)
    return out.getvalue()


def test_the_sample_pdf_has_sixty_pages_of_text_without_its_running_feet(sample_pdf):
    document = read(sample_pdf, "handbook.pdf", "application/pdf")

    assert document.pages == 60
    assert len(document.text.split()) > 12_000
    assert "Chapter 12 Visitors, Pay and Letters" in document.text
    assert "- page" not in document.text


def test_a_pdf_with_a_password_is_refused_and_one_without_an_open_password_is_read(sample_pdf):
    locked = rewritten(sample_pdf, user_password="secret")
    readable = rewritten(sample_pdf, user_password="", owner_password="owner")

    with pytest.raises(InvalidInput, match=r"a\.pdf is protected by a password"):
        read(locked, "a.pdf", "application/pdf")
    assert read(readable, "a.pdf", "application/pdf").pages == 60


def test_a_pdf_without_text_is_refused_with_its_page_count():
    writer = PdfWriter()
    writer.add_blank_page(200, 200)
    writer.add_blank_page(200, 200)
    out = BytesIO()
    writer.write(out)

    with pytest.raises(InvalidInput, match=r"no text on its 2 page\(s\)") as refused:
        read(out.getvalue(), "scan.pdf", "application/pdf")
    assert refused.value.error_class is ErrorClass.INPUT


@pytest.mark.parametrize("keep", [20, 600, 5000, 40_000])
@pytest.mark.filterwarnings("ignore")
def test_a_torn_pdf_is_input_that_cannot_be_read_or_is_read_in_part(sample_pdf, keep):
    with suppress(InvalidInput):
        assert read(sample_pdf[:keep], "torn.pdf", "application/pdf").text.strip()


@pytest.mark.parametrize(
    ("data", "content_type", "sentence"),
    [
        (b"PK\x03\x04rest", "application/octet-stream", "packed file"),
        (b"no pdf at all", "application/pdf", "does not begin like one"),
        (bytes(range(32)) * 10, "application/octet-stream", "neither a PDF nor a text file"),
        (b" \n\t ", "text/plain", "has no text"),
        (b"", "text/plain", "has no text"),
    ],
)
def test_what_is_no_document_is_refused_with_a_sentence(data, content_type, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        read(data, "thing", content_type)


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        ("Größe".encode(), "text/plain"),
        ("Größe".encode("utf-8-sig"), "text/plain"),
        ("Größe".encode("utf-16"), "text/plain"),
        ("Größe".encode("latin-1"), "text/plain; charset=iso-8859-1"),
        ("Größe".encode("cp1252"), "text/plain"),
        ("Größe".encode("latin-1"), "text/plain; charset=no-such-charset"),
    ],
)
def test_text_is_decoded_by_mark_declaration_or_guess(data, content_type):
    assert read(data, "t.txt", content_type).text == "Größe"


def test_html_gives_its_readable_text_with_headings():
    page = (
        "<!doctype html><head><title>t</title><style>p{}</style></head>"
        "<h2>Lamp &amp; Lens</h2><p>One\n two</p><script>x</script>"
    )

    assert read(page.encode(), "page.html", "text/html").text == "## Lamp & Lens\n\nOne two"


def test_control_characters_and_lone_surrogates_are_left_out():
    assert read_text("a\0b\ud83dc\r\nd\x1b").text == "abc\nd"


def test_reading_stops_between_pages_when_told(sample_pdf):
    asked = iter([False, False])

    document = read_file(sample_pdf, "a.pdf", "application/pdf", lambda: next(asked, True))

    assert "Chapter 1" in document.text
    assert "Chapter 2" not in document.text
