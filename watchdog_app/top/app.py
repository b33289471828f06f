"""
The Textual app of `watchdog top`: its widgets and key bindings.

The daemon sends a status object every second; the screen shows the latest one. The threads of
`client.feed` do everything that waits.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from watchdog_app.base.errors import WatchdogError
from watchdog_app.base.text.terminal import Style, plain, plain_block
from watchdog_app.client import live_view
from watchdog_app.client.feed import Answer, Feed
from watchdog_app.core.explain.agent_lines import pause_advice
from watchdog_app.core.explain.gpu_lines import gpu_details
from watchdog_app.core.explain.selection import nearest_resource
from watchdog_app.core.model.actions import ACTIONS, Action
from watchdog_app.core.model.status import Status, Task
from watchdog_app.top import charts, rows
from watchdog_app.top.past import SPAN_S, SeriesHistory, resource_key, task_key
from watchdog_app.top.screens import KEYS, PAGE_COLUMNS, Page, Question
from watchdog_app.top.table import TaskTable

_NOT_RUNNING = "The daemon is not running: nothing is watched. Start it with: watchdog start"
_MAX_SERIES_POINTS = 2000
_ANSWER_S = 330.0  # enough to save a large model on a slow disk
_FIXED_ROWS = 6  # title, margins, head of the table, border of the incidents, keys
_OTHER_ROWS = 16  # these, the rows below, and incidents
_LEAST_TASKS = 3  # rows of the table that GPUs leave to it,
_MORE_TASKS = 8  # and that remarks on GPUs leave to it
_RAISE_WINDOW = "\x1b[1t\x1b[5t"  # for terminals that set no WINDOWID (XTWINOPS)
# the names in different versions of Textual
_THEMES = ("ansi-dark", "textual-ansi", "textual-dark")


_BINDINGS: tuple[BindingType, ...] = (
    *(
        Binding(each.hotkey, f"request('{each.key}')", each.label.split()[0].lower())
        for each in ACTIONS.values()
        if each.hotkey
    ),
    Binding("enter", "detail", "plot", priority=False),
    Binding("slash", "filter", "filter", key_display="/"),
    Binding("o", "sort", "order"),
    Binding("a", "all", "all"),
    Binding("g", "gpus", "GPUs", show=False),
    Binding("question_mark", "keys", "keys", key_display="?"),
    Binding("q", "quit", "quit"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("escape", "clear", "clear", show=False),
    Binding("j", "move(1)", "down", show=False),
    Binding("k", "move(-1)", "up", show=False),
)


class TopApp(App[None]):
    """
    The app of `watchdog top`.

    Args:
        task: pid of the task to choose first; None: the most urgent one.
        in_window: whether the tray brings this view forward instead of opening another one.
    """

    TITLE = "watchdog"
    ENABLE_COMMAND_PALETTE = False
    CSS_PATH = "app.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*_BINDINGS]

    def __init__(self, task: int | None = None, *, in_window: bool = False) -> None:
        super().__init__()
        self._wanted = task  # pid of the task to choose; None: the user has chosen
        self._in_window = in_window
        self._status: Status | None = None
        self._connected = False
        self._past = SeriesHistory()
        self._sort = "urgency"
        self._name_filter = ""
        self._show_all = False
        self._plot_open: bool | None = None  # None: open where the terminal is large enough
        self._feed = Feed(self._receive_status)
        self._gpu_page: Page | None = None  # follows the status while it is open

    def compose(self) -> ComposeResult:
        """Create the widgets, from top to bottom."""
        yield Static(id="title")
        yield Static(id="lost")
        yield Static(Text("Waiting for the daemon ..."), id="resources")
        yield Static(id="gpus")
        yield TaskTable(id="tasks")
        with Vertical(id="detail"):
            yield Static(id="plot")
        yield Static(id="incidents")
        yield Input(id="filter", placeholder="part of a name; Enter keeps it, Esc shows all")
        yield Footer()

    def on_mount(self) -> None:
        """Start to follow the daemon."""
        self._table.focus()
        # Use the terminal's own sixteen colours: readable on light and dark backgrounds, also
        # over ssh.
        self.theme = next(each for each in _THEMES if each in self.available_themes)
        self._feed.start()
        if self._in_window:
            asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._come_forward)
            live_view.hold_lock()

    def on_unmount(self) -> None:
        """Stop following the daemon."""
        self._feed.stop()

    def on_resize(self, _: Resize) -> None:
        """Redraw: another set of columns may fit."""
        self._draw()

    # Called in the feed's thread

    def _receive_status(self, status: Status | None, error: WatchdogError | None) -> None:
        if status is not None:
            self._call_in_app(self._update_status, status)
        else:
            self._call_in_app(self._show_disconnected, str(error))

    def _deliver_in_app(self, show: Answer) -> Answer:
        return lambda result, error: self._call_in_app(show, result, error)

    def _call_in_app(self, function: Any, *arguments: Any) -> None:
        # The app may have closed in the meantime.
        if self.is_running:
            self.call_later(function, *arguments)

    # Called in the app's thread

    def _come_forward(self) -> None:
        """Choose the task of the last click in the tray, and show the window."""
        self._wanted = live_view.wanted_task()
        if self._wanted is not None and isinstance(self.screen, Page):
            self.pop_screen()  # it would cover the task
        if self._driver is not None:
            self._driver.write(_RAISE_WINDOW)
        live_view.activate_window()
        self.bell()  # most taskbars mark the window
        self._draw()

    def _update_status(self, status: Status) -> None:
        self._status = status
        self._set_connected(True)
        self._past.add(status)
        self.query_one("#lost").display = False
        self._draw()

    def _show_disconnected(self, message: str) -> None:
        self._set_connected(False)
        lost = self.query_one("#lost", Static)
        known = "What is shown is old. " if self._status is not None else ""
        text = _NOT_RUNNING if "not running" in message else plain(message)
        lost.update(Text(f"{text}  {known}This view continues when the daemon is back."))
        lost.display = True
        self._draw()
        if self._status is None:
            self.query_one("#resources", Static).update(Text(""))

    def _set_connected(self, connected: bool) -> None:
        if connected != self._connected:
            self._connected = connected
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:  # noqa: ARG002
        """Hide the keys of requests while no daemon answers."""
        return self._connected or action != "request"

    def _draw(self) -> None:
        status = self._status
        if status is None or not self.is_running:
            return
        columns = max(20, self.size.width - 2)
        height = self.size.height
        self.query_one("#title", Static).update(rows.title_line(status, columns))
        self._draw_tasks(status, columns)
        self._draw_detail(status, columns)
        room = height - self._plot_rows() - len(status.gpus) - _OTHER_ROWS
        most = 2 if height < 16 else 4 if height < 30 else max(4, min(10, room))
        lines = rows.resource_rows(status, columns, self._show_all, most)[: most + 1]
        self.query_one("#resources", Static).update(Text("\n").join(lines))
        most = 6 if height >= 30 else 3 if height >= 24 else 2 if height >= 16 else 1
        incidents = rows.incident_rows(status, columns, most)
        if not self._connected:
            incidents = [rows.unknown_line()]
        self.query_one("#incidents", Static).update(Text("\n").join(incidents))
        room = height - len(lines) - len(incidents) - _FIXED_ROWS - self._plot_rows()
        tasks, cards = len(self._table.tasks), len(status.gpus)
        most = max(room - min(_MORE_TASKS, tasks), min(cards, room - min(_LEAST_TASKS, tasks)))
        self._draw_gpus(status, columns, max(most, min(2, cards) if height >= 16 else 0))

    def _draw_gpus(self, status: Status, columns: int, most: int) -> None:
        # A plot that was opened on a small screen takes the place of the GPUs.
        hidden = self._plot_rows() and not self._is_large(status) and most < len(status.gpus)
        lines = [] if hidden else rows.gpu_rows(status, columns, self._show_all, most)
        gpus = self.query_one("#gpus", Static)
        gpus.update(Text("\n").join(lines))
        gpus.display = bool(lines)
        if self._gpu_page is not None and self.screen is self._gpu_page:
            self._gpu_page.update_text(self._gpu_text())

    def _gpu_text(self) -> Text:
        columns = min(PAGE_COLUMNS, self.size.width * 96 // 100) - 6  # border and scroll bar
        lines = [] if self._status is None else gpu_details(self._status, columns, Style())
        return Text("\n".join(lines))

    def _is_large(self, status: Status) -> bool:
        """Whether there is room for the plot and everything else."""
        height = 28 + 3 * min(8, len(status.gpus))
        return self.size.width >= 110 and self.size.height >= height

    def _plot_rows(self) -> int:
        return max(10, self.size.height // 3) if self.query_one("#detail").display else 0

    def _draw_tasks(self, status: Status, columns: int) -> None:
        titles = rows.column_titles(columns, bool(status.gpus))
        before = self._table.chosen
        wanted = status.task(self._wanted)
        if wanted is not None and self._name_filter:
            self._name_filter = self.query_one("#filter", Input).value = ""
        chosen = wanted or self._table.last_chosen
        shown = rows.visible_tasks(status, self._sort, self._name_filter, self._show_all, chosen)
        self._table.show(shown, titles, columns, self._past, rows.series_by_task(status, shown))
        if before is not None and (
            message := rows.ended_message(before, self._table.chosen, status)
        ):
            self.notify(message, timeout=8, markup=False)
        if wanted is not None or (self._wanted is not None and self._connected):
            self._choose_wanted(wanted)
        left = len(rows.visible_tasks(status, self._sort, "", True)) - len(shown)
        what = f"order: {self._sort}"
        if self._name_filter:
            what += f"   only: {plain(self._name_filter)}"
        if left:
            what += f"   {left} more not shown" + ("" if self._name_filter else " (a)")
        if not status.tasks:
            what = "no Python process is running yet; a new one appears in 2 s"
        self.query_one("#incidents").border_title = what

    def _choose_wanted(self, task: Task | None) -> None:
        if task is None:
            self.notify(f"Process {self._wanted} has ended: watchdog explain {self._wanted}")
        else:
            self._plot_open = True
            self._table.follows_order = False
            self._table.move_cursor(row=self._table.tasks.index(task), animate=False)
        self._wanted = None

    def _draw_detail(self, status: Status, columns: int) -> None:
        pane = self.query_one("#detail")
        task = self._table.chosen
        plot_open = self._is_large(status) if self._plot_open is None else self._plot_open
        pane.display = plot_open and task is not None
        # A very small screen has room for either the plot or the lists.
        room = not pane.display or self.size.height >= 20
        self.query_one("#resources").display = self.query_one("#incidents").display = room
        if not pane.display or task is None:
            return
        height = self._plot_rows() if room else self.size.height - 8
        points = self._past.points(task_key(task))
        strips: list[charts.Strip] = [(rows.task_title(task), points, None)]
        resource = nearest_resource(status, task)
        if resource is not None and resource.eta_s is not None:
            points = self._past.points(resource_key(resource))
            strips.append((rows.resource_title(resource), points, resource))
        if columns < rows.WIDE:
            strips = strips[-1:]
        lines = charts.side_by_side(strips, (columns, max(6, height) - 1))
        lines.append(rows.saved_line(task, status.time_unix_s or time.time()))
        lines[-1].truncate(columns, overflow="ellipsis")
        self.query_one("#plot", Static).update(Text("\n").join(lines))
        self._load_past(task)

    def _load_past(self, task: Task) -> None:
        """Request a task's recorded series once: this view has no points from before its start."""
        key = task_key(task)
        if self._past.is_requested(key):
            return
        self._past.prepend(key, ())
        now = self._status.time_unix_s if self._status is not None else None
        since = (now or time.time()) - SPAN_S

        def show(result: Any, error: WatchdogError | None) -> None:
            if error is not None:
                return
            for one in (result or {}).get("series") or []:
                kind = str(one.get("kind"))
                # The ident of a resource is "KIND:SUBJECT".
                subject = str(one.get("ident") or "").partition(":")[2]
                found = key if kind == "task" else (kind, subject)
                self._past.prepend(found, one.get("points") or [])
            self._draw()

        self._feed.ask(
            "series",
            self._deliver_in_app(show),
            task=str(task.pid),
            since_unix_s=since,
            limit=_MAX_SERIES_POINTS,
        )

    # Actions of the keys

    @property
    def _table(self) -> TaskTable:
        return self.query_one("#tasks", TaskTable)

    def on_data_table_row_highlighted(self, _: DataTable.RowHighlighted) -> None:
        """Draw the plot of the task that is now chosen."""
        if self._status is not None and self.query_one("#detail").display:
            self._draw_detail(self._status, max(20, self.size.width - 2))

    def on_data_table_row_selected(self, _: DataTable.RowSelected) -> None:
        """Handle Enter and a click on a row."""
        self._table.follows_order = False
        self.action_detail()

    def action_detail(self) -> None:
        """Show or hide the plot."""
        self._plot_open = not self.query_one("#detail").display
        self._draw()

    def action_move(self, by: int) -> None:
        """Move the cursor up or down in the table."""
        if by < 0:
            self._table.action_cursor_up()
        else:
            self._table.action_cursor_down()

    def action_sort(self) -> None:
        """Switch to the next sort order."""
        self._sort = rows.next_sort(self._sort)
        self._draw()

    def action_all(self) -> None:
        """Show all tasks and limits, or only the important ones."""
        self._show_all = not self._show_all
        self._draw()

    def action_gpus(self) -> None:
        """Show every figure and program of the GPUs; the page follows them."""
        self._gpu_page = Page("GPUs", self._gpu_text())
        self.push_screen(self._gpu_page)

    def action_filter(self) -> None:
        """Ask for a part of a name."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter the table after each typed character."""
        self._name_filter = event.value.strip()
        self._draw()  # the first match becomes the chosen task
        if self._name_filter:
            self._table.follows_order = False

    def on_input_submitted(self, _: Input.Submitted) -> None:
        """Keep the filter and focus the table."""
        self.query_one("#filter").display = False
        self.query_one("#tasks").focus()

    def action_clear(self) -> None:
        """Handle Escape: remove the filter, else hide the plot."""
        field = self.query_one("#filter", Input)
        if field.display or self._name_filter:
            field.value = ""
            self._name_filter = ""
            field.display = False
            self.query_one("#tasks").focus()
        else:
            self._plot_open = False
        self._draw()

    def action_keys(self) -> None:
        """Show the list of keys."""
        self.push_screen(Page("Keys", KEYS))

    def action_request(self, key: str) -> None:
        """Carry out the action of a key, after its confirmation."""
        self._table.follows_order = False
        task = self._table.chosen
        if key == "explain":
            self._explain(task)
        elif task is None:
            return
        elif refusal := _refusal_reason(key, task):
            self.notify(f"{_task_name(task)} {refusal}", markup=False)
        else:
            self._confirm_action(ACTIONS[key], task)

    def _explain(self, task: Task | None) -> None:
        """Show the daemon's explanation of a task."""
        pid = None if task is None else str(task.pid)

        def show(result: Any, error: WatchdogError | None) -> None:
            text = str(error) if error is not None else str((result or {}).get("text") or "")
            self.push_screen(Page("Explain", plain_block(text)))

        self._feed.ask("explain", self._deliver_in_app(show), task=pid)

    def _confirm_action(self, action: Action, task: Task) -> None:
        def done(yes: bool | None) -> None:
            if yes and rows.is_pid_reused(task, self._status):
                self.notify(f"{_task_name(task)} has ended: nothing was done.", markup=False)
            elif yes:
                self.notify(f"{_task_name(task)}: asked.", timeout=2, markup=False)
                answer = self._deliver_in_app(self._show_outcome)
                wait_s = _ANSWER_S
                self._feed.ask(
                    action.method, answer, wait_s=wait_s, task=str(task.pid), **action.params
                )

        question = action.confirm.format(name=_task_name(task), pid=task.pid)
        self.push_screen(Question(question, _consequence_text(action.key, task)), done)

    def _show_outcome(self, result: Any, error: WatchdogError | None) -> None:
        """Show the result of a request."""
        if error is not None:
            self.notify(plain(str(error)), severity="error", timeout=10, markup=False)
            return
        for text, bad in rows.outcome_lines(result if isinstance(result, dict) else {}):
            if bad:
                self.notify(text, severity="error", timeout=10, markup=False)
            else:
                self.notify(text, timeout=6, markup=False)


def _refusal_reason(key: str, task: Task) -> str:
    """Return why the task does not support the action; empty: it does."""
    if key == "save" and task.agent is None:
        return "has no agent that could save it. See how to add one: watchdog agent --help"
    return "is not paused." if key == "resume" and task.state != "paused" else ""


def _consequence_text(key: str, task: Task) -> str:
    """Return the action's consequences, to show below its question."""
    if key == "save":
        return "It saves at the end of its step and continues."
    if key == "pause":
        return "\n".join(("It keeps its memory and its state.", *pause_advice(task.kind)))
    return ""


def _task_name(task: Task) -> str:
    return plain(task.name or "?")
