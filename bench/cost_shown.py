"""Print the figures of `cost` as Markdown tables."""

from __future__ import annotations


def show_world(world: dict[str, object]) -> None:
    tools = world["tools"]
    assert isinstance(tools, dict)
    nohang = tools.get("nohang", {}).get("cpu_ms_per_min")
    print(
        f"\n{world['processes']} processes, {world['python']} of them Python; the daemon took "
        f"{world['samples_per_min']:.1f} samples a minute; {world['living_at_the_end']} "
        f"lived at the end, {world['zombies']} had ended and were still listed\n"
    )
    if world["crowd_ended"]:
        print(f"NOT TO BE USED, a part of the crowd ended: {world['crowd_ended']}\n")
    print("| a minute | CPU ms | of nohang's | wake-ups | system calls | RSS MB | PSS MB |")
    print("|---|---|---|---|---|---|---|")
    for name, each in sorted(tools.items(), key=lambda item: item[1]["cpu_ms_per_min"]):
        ratio = "" if not nohang else f"{each['cpu_ms_per_min'] / nohang:.1f}x"
        calls = each["syscalls_per_min"]
        print(
            f"| {name} | {each['cpu_ms_per_min']:.1f} | {ratio} | {each['wakeups_per_min']:.0f} | "
            f"{'N/A' if calls is None else f'{calls:.0f}'} | {each['rss_bytes'] / 1e6:.1f} | "
            f"{each['pss_bytes'] / 1e6:.1f} |"
        )


def show_slopes(worlds: list[dict], more_python: int) -> None:
    """Print the cost of one more process by tool; the last two worlds differ only in Pythons."""
    *sizes, few, crowded = worlds
    first, last = sizes[0], sizes[-1]
    if last is not first:
        more = last["processes"] - first["processes"]
        print(
            f"\nOne more process that is no Python, {first['processes']} to {last['processes']}\n"
        )
        print("| a minute | CPU us | RSS bytes |")
        print("|---|---|---|")
        for name, each in first["tools"].items():
            if name not in last["tools"]:
                continue
            then = last["tools"][name]
            cpu_us = 1000 * (then["cpu_ms_per_min"] - each["cpu_ms_per_min"]) / more
            rss_bytes = (then["rss_bytes"] - each["rss_bytes"]) / more
            print(f"| {name} | {cpu_us:.2f} | {rss_bytes:.0f} |")
    before, after = few["tools"]["watchdog"], crowded["tools"]["watchdog"]
    watched_us = 1000 * (after["cpu_ms_per_min"] - before["cpu_ms_per_min"]) / more_python
    watched_bytes = (after["rss_bytes"] - before["rss_bytes"]) / more_python
    print(
        f"\nOne more Python ({crowded['python']} of them, nohang alone beside it): "
        f"{watched_us:.1f} us a minute, {watched_bytes:.0f} bytes"
    )
