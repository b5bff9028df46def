"""What a browser would send of a form of a page: with what the page shows, and what was typed over it."""

from html.parser import HTMLParser
from typing import Any


class _Form(HTMLParser):
    """Reads one form as the HTML standard says: what is disabled is not sent, a line of text has no line breaks."""

    def __init__(self, form_id: str) -> None:
        super().__init__(convert_charrefs=True)
        self.sent: dict[str, str] = {}
        self._form_id, self._is_in, self._disabled = form_id, False, 0
        self._area: str | None = None
        self._select: tuple[str, list[tuple[str, bool]]] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        own = {key: value or "" for key, value in attrs}
        if tag == "form":
            self._is_in = own.get("id") == self._form_id
        if tag == "fieldset" and (self._disabled or "disabled" in own):
            self._disabled += 1
        if not self._is_in or self._disabled:
            return
        if tag == "input":
            self._input(own)
        elif tag == "textarea":
            self._area, self.sent[own["name"]] = own["name"], ""
        elif tag == "select":
            self._select = (own["name"], [])
        elif tag == "option" and self._select is not None:
            self._select[1].append((own["value"], "selected" in own))

    def _input(self, own: dict[str, str]) -> None:
        kind, value = own.get("type", "text"), own.get("value", "")
        if kind in {"checkbox", "radio"}:
            if "checked" in own:
                self.sent[own["name"]] = own.get("value", "on")
            return
        if kind == "number":
            value = value if _is_number(value) else ""
        elif kind != "hidden":
            value = value.replace("\r", "").replace("\n", "")
        self.sent[own["name"]] = value

    def handle_data(self, data: str) -> None:
        if self._area is not None:
            self.sent[self._area] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea" and self._area is not None:
            text = self.sent[self._area].replace("\r\n", "\n").replace("\r", "\n").removeprefix("\n")
            self.sent[self._area], self._area = text.replace("\n", "\r\n"), None
        elif tag == "select" and self._select is not None:
            name, options = self._select
            chosen = [value for value, is_selected in options if is_selected] or [value for value, _ in options[:1]]
            if chosen:
                self.sent[name] = chosen[-1]
            self._select = None
        elif tag == "fieldset" and self._disabled:
            self._disabled -= 1
        elif tag == "form":
            self._is_in = False


def _is_number(text: str) -> bool:
    try:
        return abs(float(text)) < float("inf")
    except ValueError:
        return False


def filled(page: str, form_id: str = "plan-form", *, opened: bool = False, **typed: Any) -> dict[str, str]:
    """Return what is sent; `opened`: after the script has enabled what is disabled at first."""
    form = _Form(form_id)
    form.feed(page.replace(" disabled hidden>", ">") if opened else page)
    return form.sent | typed
