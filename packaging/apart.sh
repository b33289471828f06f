#!/bin/sh
# Start a program in a process namespace of its own: packaging/apart.sh PROGRAM [words]
#
# A worker of the tests: its daemons see no process of another worker, and all of them end with it.
# Where namespaces are not permitted it runs without; pytest's header says so.
if unshare --fork --pid --mount-proc --kill-child true 2>/dev/null; then
    # A shell is process 1 in there: it takes up orphans, and process 1 ignores some signals.
    # PIDs begin at ours where that is allowed: tests name memory groups by PID, and two workers
    # must not choose the same name.
    WATCHDOG_TESTS_APART=1 exec unshare --fork --pid --mount-proc --kill-child sh -c \
        '{ echo "$0" >/proc/sys/kernel/ns_last_pid; } 2>/dev/null; "$@"; exit $?' "$$" "$@"
fi
exec "$@"
