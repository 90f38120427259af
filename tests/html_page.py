"""A page of ``report``, read back."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What is in a page: sections with their text, titles of figures, tables' rows; elements have to be closed as they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.sections: dict[str, str] = {}
        self.figures: list[str] = []
        self.rows: list[list[str]] = []
        self.links: list[str] = []
        self._section = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]
        assert not any(name.startswith("on") for name in values)
        if tag == "section":
            self._section = str(values["id"])
            self.sections[self._section] = ""
        if tag == "figcaption":
            self.figures.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "xlink:href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "section":
            self._section = ""

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section] += data
        if "figcaption" in self.open:
            self.figures[-1] += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
