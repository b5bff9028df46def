"""Text from a document: PDF, HTML-like and plain text. What cannot be read is InvalidInput with a sentence why."""

import codecs
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from io import BytesIO
from typing import TYPE_CHECKING

from runs.outcomes import InvalidInput

if TYPE_CHECKING:
    from pypdf import PdfReader

PAGES_MAX = 2000
CHARACTERS_MAX = 4_000_000
CONTROL_SHARE = 0.02  # more control characters than this: not a text
PDF_MARK = b"%PDF-"
ZIP_MARK = b"PK\x03\x04"

_controls = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")
_charset = re.compile(r"charset\s*=\s*[\"']?([\w.:-]+)", re.IGNORECASE)
_hyphenated = re.compile(r"(\w)-\n(?=[a-z\u00df-\u00ff])")
_numbers = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Document:
    """A document's text. `pages` is None where the format has no pages."""

    name: str
    text: str
    pages: int | None = None


def read_text(text: str, name: str = "text") -> Document:
    """Return the document of a text given directly; a document of blanks is refused."""
    return _checked(Document(name, clean(text)))


def read_file(data: bytes, name: str, content_type: str, stopped: Callable[[], bool]) -> Document:
    """Return the document in a file's bytes. Runs in a thread; gives up between pages when `stopped()`."""
    if PDF_MARK in data[:1024]:
        return _checked(_read_pdf(data, name, stopped))
    if data.startswith(ZIP_MARK):
        raise InvalidInput(f"{name} is a packed file (an office document or an archive). Send it as PDF or text.")
    if content_type.startswith("application/pdf"):
        raise InvalidInput(f"{name} is called a PDF but does not begin like one.")
    text = clean(_decode(data, name, content_type))
    if "html" in content_type or re.match(r"\s*<(?:!doctype\s+html|html)\b", text, re.IGNORECASE):
        text = clean(_text_of_html(text))
    return _checked(Document(name, text))


def clean(text: str) -> str:
    """Return the text with plain line ends, without control characters that no store or viewer takes."""
    return _controls.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def _checked(document: Document) -> Document:
    if not document.text.strip():
        raise InvalidInput(f"{document.name} has no text.")
    if len(document.text) > CHARACTERS_MAX:
        raise InvalidInput(
            f"{document.name} has {len(document.text):,} characters; {CHARACTERS_MAX:,} is the most that is read."
        )
    return document


# -- PDF ------------------------------------------------------------------------------------------------------------
def _read_pdf(data: bytes, name: str, stopped: Callable[[], bool]) -> Document:
    # A third of a second of CPU that no process spends before its first PDF.
    from pypdf import PdfReader  # noqa: PLC0415
    from pypdf.errors import DependencyError  # noqa: PLC0415

    try:
        reader = PdfReader(BytesIO(data))
        count = _open_pages(reader, name)
        pages = _page_texts(reader, stopped)
    except InvalidInput:
        raise
    except DependencyError as error:
        raise InvalidInput(f"{name} is protected in a way that cannot be opened here.") from error
    except Exception as error:
        raise InvalidInput(f"{name} is not a readable PDF ({type(error).__name__}).") from error
    text = clean(_joined(_without_repeated_lines(pages)))
    if not text.strip():
        raise InvalidInput(
            f"{name} has no text on its {count} page(s): it is probably scanned. Run text recognition (OCR) first."
        )
    return Document(name, unicodedata.normalize("NFKC", _hyphenated.sub(r"\1", text)), count)


def _open_pages(reader: "PdfReader", name: str) -> int:
    """Return the number of pages of a PDF that anybody may open."""
    if reader.is_encrypted and not reader.decrypt(""):
        raise InvalidInput(f"{name} is protected by a password. Remove the protection and send it again.")
    count = len(reader.pages)
    if count > PAGES_MAX:
        raise InvalidInput(f"{name} has {count} pages; {PAGES_MAX} is the most that is read.")
    return count


def _page_texts(reader: "PdfReader", stopped: Callable[[], bool]) -> list[list[str]]:
    """Return the lines of each page, top to bottom."""
    pages: list[list[str]] = []
    size = 0
    for page in reader.pages:
        if stopped():
            break
        lines = [line.strip() for line in (page.extract_text() or "").splitlines()]
        size += sum(map(len, lines))
        pages.append(lines)
        if size > CHARACTERS_MAX:
            break
    return pages


def _without_repeated_lines(pages: list[list[str]]) -> list[str]:
    """Return the pages' texts without running heads and feet: first and last lines that most pages share."""
    edges = Counter(_shape(line) for lines in pages for line in {*lines[:1], *lines[-1:]} if line)
    often = {shape for shape, count in edges.items() if len(pages) >= 4 and count > len(pages) / 2}
    texts = []
    for lines in pages:
        kept = lines
        if kept and _shape(kept[0]) in often:
            kept = kept[1:]
        if kept and _shape(kept[-1]) in often:
            kept = kept[:-1]
        texts.append("\n".join(kept))
    return texts


def _joined(texts: list[str]) -> str:
    """Join the pages; a sentence that goes on overleaf stays one."""
    joined = ""
    for text in texts:
        over = joined.rstrip()[-1:].isalnum() or joined.rstrip().endswith((",", "-"))
        joined = f"{joined.rstrip()}\n{text.lstrip()}" if over else f"{joined}\n\n{text}"
    return joined


def _shape(line: str) -> str:
    return _numbers.sub("#", line.casefold())


# -- text -----------------------------------------------------------------------------------------------------------
def _decode(data: bytes, name: str, content_type: str) -> str:
    """Return the text by its byte-order mark, as UTF-8, by the charset it declares, else as Western European."""
    for mark, charset in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark):
            return data.decode(charset, errors="replace")
    controls = sum(data.count(bytes([code])) for code in (*range(9), 11, *range(14, 27), *range(28, 32)))
    if controls > len(data) * CONTROL_SHARE:
        raise InvalidInput(f"{name} is neither a PDF nor a text file.")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode(_declared(data, content_type) or "cp1252", errors="replace")


def _declared(data: bytes, content_type: str) -> str | None:
    found = _charset.search(content_type) or _charset.search(data[:2048].decode("ascii", errors="ignore"))
    if found is None:
        return None
    try:
        return codecs.lookup(found[1]).name
    except LookupError:
        return None


class _Html(HTMLParser):
    """Collects readable text; headings become markdown headings, so that they make chapters."""

    BLOCKS = frozenset({"p", "div", "br", "li", "tr", "section", "article", "table", "ul", "ol", "blockquote", "pre"})
    SILENT = frozenset({"script", "style", "head", "noscript", "template", "svg"})
    HEADINGS = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002  the base's form
        if tag in self.SILENT:
            self.silent += 1
        elif tag in self.HEADINGS:
            self.parts.append("\n\n" + "#" * int(tag[1]) + " ")
        elif tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SILENT:
            self.silent = max(0, self.silent - 1)
        elif tag in self.HEADINGS or tag in self.BLOCKS:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(re.sub(r"\s+", " ", data))


def _text_of_html(text: str) -> str:
    parser = _Html()
    parser.feed(text)
    parser.close()
    return re.sub(r"\n{3,}", "\n\n", "".join(parser.parts)).strip()
