"""The tray process: connects to the desktop, waits for a tray, runs until a signal or Quit."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from watchdog_app.base import paths, plyer
from watchdog_app.base.errors import EXIT_OK, AlreadyRunning, WatchdogError
from watchdog_app.base.text.terminal import plain, plain_block, shorten
from watchdog_app.client.feed import Feed, disconnect_reason
from watchdog_app.core.model.status import Notification, Status
from watchdog_app.install.login import LoginSetting
from watchdog_app.tray import backends
from watchdog_app.tray.commands import Commands, button_command
from watchdog_app.tray.menu_model import Command, CommandKind, Slots, menu
from watchdog_app.tray.state import NO_DAEMON, TrayState, tray_state

TYPE_CHECKING = False
if TYPE_CHECKING:
    from watchdog_app.tray.bus import SessionBus
    from watchdog_app.tray.notifications import Notifications
    from watchdog_app.tray.sni import StatusNotifierItem

_SLOW_POLL_S = 3.0  # interval between statuses at rest; daemon and tray process sleep in between
_FAST_POLL_S = 1.0  # in danger, or while the menu is open
_OPEN_MENU_S = 30.0  # after the menu opened, it is updated every second for this time
_TRAY_POLL_S = 2.0
_PANEL_GRACE_S = (
    6.0  # wait this long for a panel that starts with the session, before using an XEmbed tray
)
_ICON_PIXELS = 64  # for backends that take one image and scale it


class Companion:
    """
    The tray process of one session.

    Args:
        login: setting to start at login; None: not available here.
        notifications_only: show no icon.
        dark_panel: the panel behind the icon is dark.
    """

    def __init__(
        self, login: LoginSetting | None, *, notifications_only: bool, dark_panel: bool
    ) -> None:
        self._notifications_only = notifications_only
        self._login = login
        self._at_login: bool | None = None if login is None else False
        self._status: Status | None = None
        self._had_status: bool | None = None
        self._stopping = threading.Event()
        self._icon: Any = None
        self._fast_until_mono_s = 0.0
        self._login_read_mono_s = 0.0
        self._dark_panel = dark_panel
        self._lock = threading.RLock()  # of what follows: icon, tooltip and menu
        self._attached: Any = None  # the icon that shows the state; None: none for now
        self._ended: Notification | None = None  # the last notification of an end
        self._state = self._drawn = NO_DAEMON  # the state, and that on screen
        self._slots = Slots()
        self._entries = menu(None, NO_DAEMON, now_unix_s=time.time())
        self._feed = Feed(
            self._on_status, self._on_notification, role="tray", interval_s=_SLOW_POLL_S
        )
        self._commands = Commands(
            notify=lambda notification: self._show_notification(notification, lambda *_: None),
            on_done=self._command_done,
            status=lambda: self._status,
            login=login,
        )
        self._bus: SessionBus | None = None
        self._notifications: Notifications | None = None
        self._item: StatusNotifierItem | None = None

    def run(self) -> int:
        """
        Show icon and notifications until Ctrl-C, SIGTERM or Quit; return the exit code.

        Raises:
            AlreadyRunning: this session already has a tray process.
        """
        self._handle_signals()
        try:
            self._connect()
            self._feed.start()
            # Use a thread, because the answer of systemd can take time.
            threading.Thread(target=self._update_login_state, daemon=True).start()
            self._show_icons()
        finally:
            self._feed.stop()
            if self._notifications is not None:
                self._notifications.close_transient()
            if self._bus is not None:
                self._bus.stop()
        return EXIT_OK

    def stop(self) -> None:
        """Stop soon; safe to call from any thread."""
        self._stopping.set()
        icon = self._icon
        if icon is not None:
            try:
                icon.stop()
            except Exception:  # the display and the icon no longer exist
                return

    # Events

    def _on_status(self, status: Status | None, error: WatchdogError | None) -> None:
        self._status = status
        if (status is not None) != self._had_status:
            if status is not None:
                _log("connected to the daemon." if self._had_status is not None else "running.")
            elif self._had_status or disconnect_reason(error) is not None:
                _log(f"{error}\nThe tray icon waits for it.")
            else:
                _log("no daemon runs yet. Start it with: watchdog start")
            self._had_status = status is not None
        state = self._update_state(disconnect_reason(error))
        fast = state.is_active or time.monotonic() < self._fast_until_mono_s
        self._feed.set_interval(_FAST_POLL_S if fast else _SLOW_POLL_S)
        if self._notifications is None:
            return
        if status is not None:
            self._notifications.close_outdated(status)
        elif not os.path.exists(paths.socket_path()):  # stopped; a killed daemon leaves the file
            self._notifications.close_transient()

    def _on_notification(self, notification: Notification) -> None:
        """Show a notification, and report to the daemon whether it was shown."""
        id_ = notification.id
        task = self._status.task(notification.task) if self._status else None
        if task is not None:
            # The user may press a button later, when the pid may belong to another process.
            notification.start_time, notification.name = task.start_time, task.name

        if notification.topic == "exited":
            self._ended = notification
            self._feed.refresh()

        def on_result(delivered: bool, detail: str) -> None:
            if id_ is not None:
                self._feed.send("notification.shown", id=id_, delivered=delivered, detail=detail)

        self._show_notification(notification, on_result)

    def _show_notification(self, notification: Notification, on_result: Any) -> None:
        if self._notifications is not None and self._bus is not None and self._bus.connected:
            self._notifications.show(notification, on_result)
        elif backends.ON_MACOS:
            threading.Thread(
                target=_show_by_plyer, args=(notification, on_result), daemon=True
            ).start()
        else:
            title, body = notification.title, notification.body
            _log(f"{title}: {body}")
            on_result(False, "there is no session bus to show it on")

    def _on_button(self, notification: Notification, key: str) -> None:
        command = button_command(notification, key)
        if command is not None:
            self._commands.submit(command, notification)

    def _on_command(self, command: Command) -> None:
        """Start a clicked command; return at once."""
        if command.kind is CommandKind.QUIT:
            threading.Thread(target=self.stop, daemon=True).start()
        else:
            self._commands.submit(command)

    def _command_done(self) -> None:
        self._update_login_state()
        self._feed.refresh()

    def _update_login_state(self) -> None:
        if self._login is not None:
            before, self._at_login = self._at_login, self._login.state()
            if before != self._at_login:
                self._feed.refresh()

    def _menu_opened(self) -> None:
        """Update the menu now, and then every second for some time."""
        self._fast_until_mono_s = time.monotonic() + _OPEN_MENU_S
        with self._lock:
            self._slots.reassign(self._status)
            self._show_menu()
        self._feed.set_interval(_FAST_POLL_S)
        self._feed.refresh()
        # The user can also change what starts at login in the desktop's own settings.
        if time.monotonic() >= self._login_read_mono_s + _OPEN_MENU_S / 10:
            self._login_read_mono_s = time.monotonic()
            threading.Thread(target=self._update_login_state, daemon=True).start()

    # What icon, tooltip and menu show; only changes are drawn and sent

    def _update_state(self, disconnect_reason: str | None) -> TrayState:
        with self._lock:
            self._state = _tray_state(self._status, disconnect_reason, time.time())
            if self._attached is not None:
                self._draw()
                # Dock into a tray that started after this process; pystray's xorg backend tries
                # only once.
                if getattr(self._attached, "docked", True) is False and self._attached.visible:
                    self._attached.icon = self._attached.icon
            if not getattr(self._attached, "REPORTS_MENU_OPEN", False):
                self._slots.reassign(self._status)
            self._show_menu()
            return self._state

    def _attach(self, icon: Any, made_with: TrayState = NO_DAEMON) -> None:
        """
        Show the state on an icon from now on.

        Args:
            icon: a pystray icon, or None: no icon for now.
            made_with: the state that the icon already shows.
        """
        with self._lock:
            self._attached, self._drawn = icon, made_with
            if icon is not None:
                self._draw()  # changes since the icon was made
                icon.update_menu()

    def _show_menu(self) -> None:
        entries = menu(
            self._status,
            self._state,
            self._slots.update(self._status),
            ended=self._ended,
            at_login=self._at_login,
            now_unix_s=time.time(),
        )
        if entries != self._entries:
            self._entries = entries
            if self._attached is not None:
                self._attached.update_menu()

    def _draw(self) -> None:
        before, self._drawn = self._drawn, self._state
        if before.picture != self._state.picture:
            self._attached.icon = self._render_icon(self._state, self._attached)
        if before.title != self._state.title:
            self._attached.title = self._state.title

    # The desktop

    def _connect(self) -> None:
        """Connect to the session bus, where there is one."""
        if sys.platform != "darwin":
            try:
                from watchdog_app.tray.bus import SessionBus
                from watchdog_app.tray.notifications import Notifications
                from watchdog_app.tray.sni import StatusNotifierItem
            except ImportError as error:
                _log(f"the session bus cannot be used: {error}. Install dbus-fast.")
            else:
                self._notifications = Notifications(self._on_button)
                self._item = StatusNotifierItem(
                    self._on_command, self._menu_opened, lambda: self._entries
                )
                self._bus = SessionBus(
                    [self._item, self._notifications],
                    on_taken=self.stop,  # another tray process has taken the bus name
                    on_failure=lambda error: _log(f"the desktop refused something: {error}"),
                )
                self._item.session = self._notifications.session = self._bus
                self._bus.start()
                if self._bus.name_taken:
                    raise AlreadyRunning("The companion runs already in this session.")

    def _show_icons(self) -> None:
        """Run the icon in the available tray; if there is none, wait for one."""
        if self._notifications_only:
            self._report_no_icon("as it was asked to")
            self._stopping.wait()
            return
        reported = False
        begin_mono_s = time.monotonic()
        while not self._stopping.is_set():
            grace = time.monotonic() - begin_mono_s < _PANEL_GRACE_S
            found = self._find_backend(grace)
            if found is not None:
                make_icon, name = found
                _log(f"icon shown by {name}.")
                self._run_icon(make_icon)
                begin_mono_s, reported = time.monotonic(), False
                # Wait before using a tray again that has just ended.
                self._stopping.wait(_TRAY_POLL_S)
                continue
            if not reported and not grace:
                reported = True
                self._report_no_icon(_no_tray_reason(self._bus))
            self._wait_for_panel(_TRAY_POLL_S if grace else 5 * _TRAY_POLL_S)

    def _find_backend(self, grace: bool) -> tuple[Callable[[TrayState], Any], str] | None:
        """Return a factory of icons for the running tray, and its name; None: no tray."""
        own = backends.native_backend()
        if own is not None:
            return self._pystray_icon(own), sys.platform
        item = self._item
        if item is not None and item.has_panel.is_set():
            return lambda state: self._bus_icon(item, state), "sni"
        found = None if grace else backends.x11_backend()
        return None if found is None else (self._pystray_icon(found), "xorg")

    def _bus_icon(self, item: StatusNotifierItem, state: TrayState) -> StatusNotifierItem:
        item.icon, item.title = self._render_icon(state, item), state.title
        return item

    def _pystray_icon(self, icon_class: Any) -> Callable[[TrayState], Any]:
        menu = backends.pystray_menu(lambda: self._entries, self._on_command)
        return lambda state: icon_class(
            "watchdog", self._render_icon(state, icon_class), state.title, menu
        )

    def _wait_for_panel(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping.is_set() and (left_s := end - time.monotonic()) > 0:
            # Wait for a panel to appear and for the end of this process.
            if self._item is not None:
                if self._item.has_panel.wait(min(left_s, 0.5)):
                    return
            else:
                self._stopping.wait(left_s)

    def _run_icon(self, make_icon: Callable[[TrayState], Any]) -> None:
        state = self._state
        icon = make_icon(state)

        def ready(shown: Any) -> None:
            try:
                shown.visible = True
            except Exception as error:  # the next image triggers another try
                _log(f"the tray has not taken the icon: {error!r}.")
            self._attach(shown, state)
            self._feed.refresh()
            if self._stopping.is_set():
                shown.stop()

        self._icon = icon
        try:
            icon.run(ready)
        # the display was lost; notifications continue, and another display may appear
        except Exception as error:
            if not self._stopping.is_set():
                _log(f"the icon was lost: {error!r}.")
        finally:
            self._attach(None)
            self._icon = None
            if self._item is not None and self._item.visible:
                self._item.visible = False

    def _render_icon(self, state: TrayState, icon: Any) -> Any:
        from watchdog_app.tray.drawing import Renditions

        renditions = Renditions(state.picture, self._dark_panel)
        return (
            renditions if getattr(icon, "TAKES_RENDITIONS", False) else renditions.at(_ICON_PIXELS)
        )

    def _report_no_icon(self, why: str) -> None:
        if self._bus is not None and self._bus.connected:
            then = "notifications are shown on this desktop"
        else:
            then = "notifications are written here, and the daemon shows them in its other channels"
        later = "" if self._notifications_only else " The icon comes when a tray does."
        _log(f"no icon, {why}; {then}.{later} End it with Ctrl-C.")

    def _handle_signals(self) -> None:
        def end(*_: object) -> None:
            # Use a thread: a signal handler may interrupt the holder of the locks that `stop`
            # needs.
            threading.Thread(target=self.stop, daemon=True).start()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Keep ignored signals ignored: nohup ignores SIGHUP, shells ignore SIGINT of
            # background jobs.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, end)


def _tray_state(
    status: Status | None, disconnect_reason: str | None, now_unix_s: float
) -> TrayState:
    if status is not None:
        return tray_state(status, now_unix_s)
    if disconnect_reason is None:
        return NO_DAEMON
    return TrayState(
        NO_DAEMON.picture, "The daemon cannot be reached", disconnect_reason[:120], is_active=False
    )


def _show_by_plyer(notification: Notification, on_result: Callable[[bool, str], None]) -> None:
    title, body = plain(notification.title), plain_block(notification.body)
    problem = plyer.show(shorten(title, 64), shorten(body, 250))
    on_result(not problem, problem or "shown by the companion")


def _no_tray_reason(bus: SessionBus | None) -> str:
    """Return why no icon can be shown, as text."""
    screen = os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY")
    if bus is None or not bus.connected:
        problem = "" if bus is None or not bus.problem else f" ({bus.problem})"
        if not screen:
            return f"as there is neither a display nor a session bus here{problem}"
        return f"as there is no session bus{problem}"
    if not screen:
        return "as there is no display"
    if "GNOME" in os.environ.get("XDG_CURRENT_DESKTOP", ""):
        return (
            "as this desktop shows none (GNOME needs its extension AppIndicator and "
            "KStatusNotifierItem Support)"
        )
    return "as no tray runs on this desktop"


def _log(text: str) -> None:
    """Write a line to the terminal that started this process."""
    try:
        print(f"watchdog tray: {plain_block(text)}", file=sys.stderr, flush=True)
    except (OSError, ValueError):
        pass  # standard error was closed
