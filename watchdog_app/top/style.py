"""How the live view looks and which keys it takes."""

from __future__ import annotations

from textual.binding import Binding, BindingType

from watchdog_app.core.model.actions import ACTIONS

CSS = """
Screen { background: $background; overflow: hidden; }
ModalScreen { background: transparent; }
#title, #filter { height: 1; padding: 0 1; }
#lost { height: auto; display: none; padding: 0 1; background: $error; color: $text; }
#resources { height: auto; padding: 0 1; margin-bottom: 1; }
#gpus { height: auto; padding: 0 1; margin-bottom: 1; display: none; }
#tasks { height: 1fr; min-height: 4; padding: 0 1; }
#tasks .datatable--cursor { background: $background; color: $foreground; text-style: reverse; }
#detail { height: auto; display: none; padding: 0 1; }
#incidents {
    height: auto; max-height: 8; padding: 0 1;
    border-top: solid $foreground 30%; border-title-align: right;
}
#filter { display: none; border: none; }
"""
BINDINGS: tuple[BindingType, ...] = (
    *(
        Binding(each.hotkey, f"request('{each.key}')", each.label.split()[0].lower())
        for each in ACTIONS.values()
        if each.hotkey
    ),
    Binding("enter", "detail", "plot", priority=False),
    Binding("slash", "filter", "filter", key_display="/"),
    Binding("o", "sort", "order"),
    Binding("a", "all", "all"),
    Binding("question_mark", "keys", "keys", key_display="?"),
    Binding("q", "quit", "quit"),
    Binding("ctrl+c", "quit", "quit", show=False, priority=True),
    Binding("escape", "clear", "clear", show=False),
    Binding("j", "move(1)", "down", show=False),
    Binding("k", "move(-1)", "up", show=False),
)
