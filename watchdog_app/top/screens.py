"""Modal screens of the live view: a question, a text, the list of keys."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

PAGE_COLUMNS = 100
_BOX = """
{name} {{ align: center middle; }}
{name} > #box {{
    width: {width}; max-width: 96%; height: auto; max-height: 90%;
    border: round $foreground; padding: 0 1; background: $background;
}}
{name} #hint {{ color: $text-muted; margin-top: 1; }}
"""


class Question(ModalScreen[bool]):
    """Ask yes or no. Enter and y mean yes; Escape, n and q mean no."""

    DEFAULT_CSS = _BOX.format(name="Question", width=64)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "answer(True)", "yes"),
        Binding("n,escape,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str, detail: str = "") -> None:
        super().__init__()
        self._question = question
        self._detail = detail

    def compose(self) -> ComposeResult:
        """Create the question, its detail and the hint on the keys."""
        with Vertical(id="box"):
            yield Static(Text(self._question, style="bold"))
            if self._detail:
                yield Static(Text(self._detail))
            yield Static(Text("y or Enter: yes    n or Esc: no"), id="hint")

    def action_answer(self, answer: bool) -> None:
        """Close the screen and return the answer."""
        self.dismiss(answer)


class Page(ModalScreen[None]):
    """A text to read; it scrolls if it is longer than the screen."""

    DEFAULT_CSS = _BOX.format(name="Page", width=PAGE_COLUMNS)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,question_mark,e,g", "close", "close"),
        Binding("j,down", "scroll(1)", "down"),
        Binding("k,up", "scroll(-1)", "up"),
    ]

    def __init__(self, title: str, text: str | Text) -> None:
        super().__init__()
        self._title = title
        self._text = Text(text) if isinstance(text, str) else text

    def compose(self) -> ComposeResult:
        """Create the title, the text and the hint on the keys."""
        with Vertical(id="box"):
            yield Static(Text(self._title, style="bold"))
            with VerticalScroll(id="page"):
                yield Static(self._text, id="text")
            yield Static(Text("Esc: close    arrows: scroll"), id="hint")

    def on_mount(self) -> None:
        """Make the text as high as it needs, up to most of the screen."""
        page = self.query_one("#page")
        page.styles.height = "auto"
        # The box takes 90 % of the height at most, and its border, title and hint take 5 lines.
        page.styles.max_height = max(3, self.app.size.height * 9 // 10 - 5)

    def update_text(self, text: Text) -> None:
        """Replace the text; the page stays where it is scrolled to."""
        self.query_one("#text", Static).update(text)

    def action_close(self) -> None:
        """Close the page."""
        self.dismiss()

    def action_scroll(self, lines: int) -> None:
        """Scroll down or up."""
        self.query_one("#page").scroll_relative(y=lines, animate=False)


KEYS = """\
arrows, j k      choose a task
Enter            plot of its last 15 minutes and the forecast; again: hide
s                save a checkpoint now (asks first)
p                pause (asks first)
r                resume
e                explain: what was seen and decided, in words
/                show only tasks whose name holds a text; Esc: all
o                next order: urgency, RAM, swap, GPU, CPU, trend, ETA, name, PID
g                the GPUs in detail
a                small idle Python processes too, and limits far away
?                this page
q, Ctrl-C        quit

Bars: solid is used, shaded is what the next minute adds at this pace.
Plot: the plain line is what was seen, the dotted red line the limit, purple the forecast: in
the middle the likeliest, outside it the ends of the 80 % interval."""
