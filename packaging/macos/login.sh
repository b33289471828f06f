#!/bin/sh
# Start daemon and menu bar icon at every login, or no more. For one user, without sudo.
#
#   packaging/macos/login.sh on [PROGRAM]   PROGRAM: path of `watchdog`; default: the one of
#                                           /Applications/Watchdog.app, else that in PATH
#   packaging/macos/login.sh off
set -eu
here=$(cd "$(dirname "$0")" && pwd)
agents=$HOME/Library/LaunchAgents
labels="org.watchdog_app.watchdog.daemon org.watchdog_app.watchdog.tray"
domain=gui/$(id -u)

fail() { printf 'login.sh: %s\n' "$*" >&2; exit 1; }

find_program() {
    for candidate in "$@" /Applications/Watchdog.app/Contents/MacOS/watchdog \
        "$(command -v watchdog || true)"; do
        if [ -x "$candidate" ]; then printf '%s\n' "$candidate"; return 0; fi
        [ "$#" -eq 0 ] || fail "$candidate is not a program"
    done
    fail "no watchdog was found; name its path: login.sh on /path/to/watchdog"
}

unload() { launchctl bootout "$domain/$1" 2>/dev/null || true; }

[ "$(id -u)" != 0 ] || [ "${WATCHDOG_LOGIN_AS_ROOT:-}" = 1 ] || fail "run it as yourself, without sudo"
case ${1:-} in
    on)
        shift
        program=$(find_program "$@") || exit 1
        case $program in /*) ;; *) fail "name the whole path of $program" ;; esac
        mkdir -p "$agents"
        for label in $labels; do
            cp "$here/$label.plist" "$agents/$label.plist.new"
            plutil -replace ProgramArguments.0 -string "$program" "$agents/$label.plist.new"
            mv "$agents/$label.plist.new" "$agents/$label.plist"
            unload "$label"
            launchctl bootstrap "$domain" "$agents/$label.plist"
        done
        echo "Daemon and icon run, and start at every login: $program"
        ;;
    off)
        for label in $labels; do
            unload "$label"
            rm -f "$agents/$label.plist"
        done
        echo "Daemon and icon start no more at login."
        ;;
    *) fail "usage: login.sh on [PROGRAM] | off" ;;
esac
