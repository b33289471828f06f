"""GPUs, temperature, battery and faults in `watchdog status`, safely on any terminal."""

from __future__ import annotations

import pytest
from support.statuses import (
    GIB,
    HOSTILE_NAMES,
    NOW_UNIX_S,
    agent,
    ceiling,
    level_of,
    process,
    status,
)

from watchdog_app.base.text.terminal import Style, width
from watchdog_app.cli.history import describe
from watchdog_app.cli.status import check
from watchdog_app.cli.status_text import render
from watchdog_app.core.diagnosis.gpu_faults import STATES
from watchdog_app.core.explain.gpu_lines import gpu_details, gpu_lines
from watchdog_app.core.explain.selection import gpu_numbers
from watchdog_app.core.model.hardware import GpuState
from watchdog_app.core.model.status import Gpu, Hardware, Incident, Status, Task

SEVERITIES = ("note", "warning", "critical")


def gpu(index: int, **more):
    """The status of a busy GPU."""
    return {
        **Gpu().to_json(),
        "index": index,
        "id": f"GPU-{index}",
        "uuid": f"GPU-{index}",
        "name": "NVIDIA H100 80GB HBM3",
        "state": "ok",
        "memory_used_bytes": 23 * GIB,
        "memory_reserved_bytes": GIB,
        "memory_total_bytes": 80 * GIB,
        "utilization_percent": 97.0,
        "temperature_c": 71.0,
        "slowdown_c": 87.0,
        "shutdown_c": 92.0,
        "power_w": 612.3,
        "power_limit_w": 700.0,
        "throttling": ["software_power_cap"],
        "ecc_uncorrected": 0,
        "level": "ok",
        **more,
    }


def dark(index: int, state: str):
    """The status of a GPU that answers no query."""
    unknown = dict.fromkeys(
        ("memory_used_bytes", "memory_reserved_bytes", "utilization_percent", "temperature_c",
         "power_w")
    )  # fmt: skip
    fault = STATES.get(GpuState(state)) if state in list(GpuState) else None
    known = fault and {
        "severity": SEVERITIES[fault.stage - 1],
        "title": fault.title,
        "reason": fault.text,
        "remedy": fault.remedy(index),
        "device_works": fault.device_works,
        "work_lost": fault.restart,
    }
    level = "ok" if fault is None else ("watch", "warning", "critical")[fault.stage - 1]
    return gpu(index, state=state, health=known, level=level, throttling=[], **unknown)


def fault(**more):
    """The incident of a GPU that fell off the bus."""
    return {
        **Incident().to_json(),
        "id": "1",
        "resource": "gpu_fault",
        "subject": "GPU-1",
        "label": "GPU 1 (NVIDIA H100 80GB HBM3)",
        "stage": "save",
        "peak": "save",
        "opened_unix_s": NOW_UNIX_S - 30,
        "closed_unix_s": None,
        "reason": "Xid 79, the card has fallen off the bus",
        "advice": ["Start the machine again."],
        "contributors": [{"pid": 300, "name": "c.py", "slope_bytes_per_s": None, "share": None}],
        "level": level_of({"stage": "save", **more}),
        **more,
    }


def lines(columns=140, everything=False, **more):
    return render(Status.read(status(**more)), NOW_UNIX_S, columns, everything=everything)


def card_lines(columns, everything, *cards):
    known = Status.read(status(gpus=list(cards)))
    groups = gpu_lines(known, known.gpus, columns, Style(), everything=everything)
    return [line for group in groups for line in group]


def line_of(found, start):
    return next(line for line in found if start in line)


def test_a_card_is_one_line_with_memory_load_heat_and_power():
    """The line has the values of the JSON; the driver's reserved memory reduces the limit."""
    line = line_of(lines(gpus=[gpu(0)]), "GPU 0")

    for words in ("NVIDIA H100 80GB HBM3", "23.0 of 79.0 GiB", "29 %", "97 % busy", "71 °C"):
        assert words in line
    assert line.endswith("612/700 W")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("lost", "LOST"),
        ("needs_reset", "NEEDS A RESET"),
        ("silent", "DOES NOT ANSWER"),
        ("unreadable", "CANNOT BE READ"),
        ("asleep", "asleep"),
        ("state of a later version", "STATE OF A LATER VERSION"),
    ],
)
def test_a_card_that_does_not_answer_says_so_and_hides_no_other(state, words):
    """The message replaces the GPU's values."""
    found = "\n".join(lines(gpus=[gpu(0), dark(1, state)]))

    assert words in found
    assert "23.0 of 79.0 GiB" in found
    assert "N/A" not in line_of(found.split("\n"), "GPU 1") or state.startswith("state")


def test_a_card_that_shares_the_machines_memory_says_so():
    """The GPU has no memory of its own that could fill up."""
    board = gpu(0, unified_memory=True, memory_used_bytes=None, memory_total_bytes=None)

    assert "shares RAM" in line_of(lines(gpus=[board]), "GPU 0")
    board |= {"memory_used_bytes": 5 * GIB, "memory_total_bytes": 16 * GIB}
    board["memory_reserved_bytes"] = None
    assert "  RAM 5.00 of 16.0 GiB" in line_of(lines(gpus=[board]), "GPU 0")


def test_memory_that_is_used_is_shown_where_the_total_is_not_known():
    """Intel's i915 does not say how much memory a card has."""
    line = line_of(
        lines(gpus=[gpu(0, memory_used_bytes=7 * GIB, memory_total_bytes=None)]), "GPU 0"
    )

    assert "  7.00 GiB used" in line
    assert "N/A" not in line
    unknown = gpu(0, memory_used_bytes=None, memory_total_bytes=None)
    assert "memory N/A" in line_of(lines(gpus=[unknown]), "GPU 0")


def test_the_memory_of_a_divided_card_is_that_of_its_parts():
    """Nothing is unknown there: each MIG instance has a line."""
    whole = gpu(0, memory_used_bytes=None, memory_total_bytes=None)
    part = gpu(0, id="GPU-0/gi3.ci0", parent_id="GPU-0", partition="GI 3 / CI 0")

    assert "  by instance" in card_lines(None, False, whole, part)[0]


@pytest.mark.parametrize("columns", [40, 44, 48, 60])
def test_a_narrow_terminal_leaves_figures_out_and_cuts_none(columns):
    """A cut `80 % busy` would read as another figure."""
    cards = [gpu(0), gpu(7, utilization_percent=100.0), dark(1, "lost")]
    first, *_ = card_lines(columns, False, *cards)

    words = first.replace("NVIDIA", "").split("of")[1]
    assert "…" not in words
    assert "79.0 GiB" in words
    assert columns >= width(first)


def test_a_forecast_stands_on_the_line_of_its_card_and_not_twice():
    """The list of other limits omits the GPU's memory and temperature while they are far away."""
    memory = ceiling(
        "gpu_memory", "GPU 0 memory", 72 * GIB, 80 * GIB, subject="GPU-0",
        stage="warn", eta_s=240, eta_low_s=180, eta_high_s=400,
    )  # fmt: skip
    heat = ceiling("temperature", "heat of GPU 1 (switches off at 83 °C)", 60, 83, unit="celsius",
                   subject="GPU-1/shutdown")  # fmt: skip
    found = lines(200, gpus=[gpu(0), gpu(1)], resources=[memory, heat])

    assert "      full in 4 min (3-7 min)" == found[found.index(line_of(found, "GPU 0  ")) + 1]
    assert not [line for line in found if "GPU 0 memory" in line][1:]
    assert not [line for line in found if "heat of GPU 1" in line or "far away" in line]


def test_heat_and_battery_have_units_of_their_own():
    """The units are degrees per minute and the remaining battery charge."""
    heat = ceiling(
        "temperature", "heat of GPU 1 (switches off at 83 °C)", 80, 83, unit="celsius",
        subject="GPU-1/shutdown", stage="warn", slope_per_s=2 / 60, eta_s=90,
        eta_low_s=70, eta_high_s=120,
    )  # fmt: skip
    battery = ceiling("battery", "battery", 0.59, 0.95, unit="ratio", slope_per_s=1e-4,
                      eta_s=3600, eta_low_s=3000, eta_high_s=4000)  # fmt: skip
    found = "\n".join(lines(200, gpus=[gpu(1)], resources=[heat, battery]))

    assert "80 of 83 °C" in found
    assert "+2.0 °C/min" in found
    assert "switches off from heat in 90 s" in found
    assert "41 % left" in found
    assert "-0.6 %/min" in found
    assert "empty in 60 min" in found


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 200])
@pytest.mark.parametrize("everything", [False, True])
def test_every_line_fits_the_terminal(columns, everything):
    """Long GPU names and many values must not break this."""
    warm = ceiling("temperature", "heat of GPU 1 (switches off at 83 °C)", 80, 83, unit="celsius",
                   subject="GPU-1/shutdown", stage="warn", eta_s=90.0,
                   eta_low_s=70, eta_high_s=120)  # fmt: skip
    strangers = [{"pid": 9, "task": None, "name": None, "memory_bytes": 12 * GIB, "foreign": True}]
    cards = [
        gpu(0, notes=["the driver does not say who holds what " * 3]),
        gpu(1, throttling=["hardware_thermal", "power_brake"], processes=strangers),
        *(gpu(2 + index, name=name) for index, name in enumerate(HOSTILE_NAMES)),
        dark(15, "lost"),
    ]
    found = lines(columns, everything, gpus=cards, resources=[warm], incidents=[fault()])

    assert columns >= max(map(width, found))
    assert all(line.isprintable() for line in found)
    assert "clocked down for heat" in " ".join(" ".join(found).split())


def test_a_task_shows_its_cards_and_what_it_holds_there():
    """A task on no GPU holds a known zero; an unknown value shows as N/A."""
    uses = [{"uuid": f"GPU-{i}", "index": i, "memory_bytes": 10 * GIB} for i in (0, 1)]
    unknown = [{"uuid": "GPU-1", "index": 1, "memory_bytes": None}]
    tasks = [
        process(100, "two.ipynb", 4 * GIB, gpu_memory_bytes=20 * GIB, gpus=uses, agent=agent()),
        process(200, "none.ipynb", 3 * GIB),
        process(300, "unknown.ipynb", 2 * GIB, gpus=unknown),
    ]

    found = lines(gpus=[gpu(0), gpu(1)], tasks=tasks)

    assert ["0,1", "20.0", "GiB"] == line_of(found, "two.ipynb").split()[7:10]
    assert ["-", "-"] == line_of(found, "none.ipynb").split()[7:9]
    assert ["1", "N/A"] == line_of(found, "unknown.ipynb").split()[7:9]


def test_a_small_task_on_a_card_is_not_folded_away():
    """Its memory is on the GPU."""
    on_card = [{"uuid": "GPU-0", "index": 0, "memory_bytes": None}]
    small = process(100, "small.py", 10_000_000, kind="script", gpus=on_card)

    assert [line for line in lines(gpus=[gpu(0)], tasks=[small]) if "small.py" in line]


def test_a_fault_names_who_was_hit_and_says_nothing_of_growth():
    """The level is CRITICAL although a rescue is impossible."""
    said = "GPU 1 (NVIDIA H100 80GB HBM3): Xid 79"
    found = "\n".join(
        lines(level="critical", headline=said, gpus=[gpu(0), dark(1, "lost")], incidents=[fault()])
    )

    assert "!! CRITICAL GPU 1 (NVIDIA H100 80GB HBM3), opened 30 s ago" in found
    assert "hit: c.py (pid 300)" in found
    assert "> Start the machine again." in found
    assert "growth" not in found
    assert "RESCUE" not in found
    assert found.startswith(f"!! CRITICAL: {said}.")


def test_a_card_that_has_an_incident_is_not_told_of_twice():
    """The incident says more than the sensor's error. Without an incident the error appears."""
    error = {"source": "gpu.1", "message": "GPU 1 is lost to the driver.", "remedy": "Restart."}
    cards = [gpu(0), dark(1, "lost")]

    with_it = lines(gpus=cards, incidents=[fault()], problems=[error])
    without = lines(gpus=cards, incidents=[], problems=[error])

    assert "lost to the driver" not in "\n".join(with_it)
    assert "! GPU 1 is lost to the driver. Restart." in without


def test_a_note_is_no_warning():
    """A GPU at its power limit is a note with exit code 0."""
    note = fault(resource="throttling", stage="watch", peak="watch", contributors=[],
                 reason="it has worked at its power limit", advice=["That is normal."])  # fmt: skip
    found = "\n".join(lines(level="watch", gpus=[gpu(1)], incidents=[note]))

    assert found.startswith("OK: nothing is about to run out.")
    assert "~ NOTE GPU 1" in found
    assert "> That is normal." in found
    assert 0 == check(Status.read(status(level="watch", incidents=[note])), NOW_UNIX_S)[1]


@pytest.mark.parametrize(("level", "code"), [("watch", 0), ("warning", 1), ("critical", 2)])
def test_check_counts_faults_and_tells_the_figures_of_cards(level, code):
    """Monitoring gets memory and temperature of each GPU as performance data."""
    reading = status(level=level, gpus=[gpu(0), dark(1, "asleep")], incidents=[fault()])
    line, found = check(Status.read(reading), NOW_UNIX_S)

    assert code == found
    assert f" gpu0={23 * GIB}B;;;0;{79 * GIB}" in line
    assert " gpu0_temperature=71" in line
    assert "gpu1" not in line.partition("|")[2]


def test_the_history_of_a_fault_says_how_bad_it_was():
    """The entry shows no stage, because there was no rescue."""
    entry = {"kind": "incident", "unix_s": NOW_UNIX_S, **fault()}

    assert "GPU 1 (NVIDIA H100 80GB HBM3), critical: Xid 79" in describe(entry)
    over = describe({**entry, "closed_unix_s": NOW_UNIX_S})
    assert over.startswith("over: GPU 1 (NVIDIA H100 80GB HBM3), critical: ")


def test_parts_of_a_card_are_numbered():
    """Three MIG parts share name and number, so their instances tell them apart."""
    parts = [
        gpu(1, uuid=f"MIG-{n}", parent_id="GPU-1", partition=f"GI {n} / CI 0") for n in range(3)
    ]

    lines = card_lines(None, False, gpu(1, uuid="GPU-1"), *parts)

    assert [True] * 3 == [f"GPU 1 GI {n} / CI 0" in line for n, line in enumerate(lines[1:])]


@pytest.mark.parametrize(
    ("shown", "indices"),
    [
        ("0-7", list(range(8))),
        ("0,1", [1, 0]),
        ("0,2,3,4,7", [7, 0, 2, 3, 4]),
        ("3", [3, 3]),
        ("", []),
        ("1,N/A", [1, None]),
    ],
)
def test_many_cards_take_little_room(shown, indices):
    """A training on eight GPUs must not displace the other columns."""
    assert shown == gpu_numbers(Task.read({"gpus": [{"index": index} for index in indices]}))


def test_a_long_name_gives_way_before_what_a_card_draws():
    """In 80 columns the power stays, and the command cuts the name."""
    long = gpu(0, name="NVIDIA RTX 6000 Ada Generation Workstation Edition", power_w=280.0)

    (line, *_) = card_lines(80, False, long | {"power_limit_w": 300.0})

    assert "280/300 W" in line


def details(columns=80, *cards):
    return gpu_details(Status.read(status(gpus=list(cards))), columns, Style())


KNOWN = {
    "memory_utilization_percent": 43.0,
    "graphics_clock_mhz": 1755.0,
    "graphics_clock_max_mhz": 1980.0,
    "memory_clock_mhz": 2619.0,
    "memory_clock_max_mhz": 2619.0,
    "performance_state": "P0",
    "fan_percent": 0.0,
    "pcie_generation": 4,
    "pcie_generation_max": 5,
    "pcie_width": 8,
    "pcie_width_max": 16,
    "pcie_rx_bytes_per_s": 3.0 * GIB,
    "pcie_tx_bytes_per_s": 0.0,
    "ecc_corrected": 3,
    "ecc_corrected_aggregate": 17,
    "ecc_uncorrected_aggregate": 1,
}


def test_every_figure_of_a_card_is_told_in_detail():
    """A zero stays a zero."""
    found = details(80, gpu(0, **KNOWN))

    assert [
        "      clocks   graphics 1755 MHz of 1980 MHz, memory 2619 MHz of 2619 MHz, P0",
        "      memory   bandwidth 43 % used, 1.00 GiB kept by the driver",
        "      cooling  fan 0 %, slows down at 87 °C, switches off at 92 °C",
        "      PCIe     generation 4 of 5, 8 of 16 lanes, 3.00 GiB/s in, 0 B/s out",
        "      ECC      3 corrected and 0 uncorrected errors, 17 and 1 in its life",
        "      id       GPU-0, GPU-0",
    ] == found[1:]


def test_a_figure_that_is_not_known_is_no_zero_in_detail():
    """A line without any known figure says N/A, and a line with some leaves the others out."""
    unknown = gpu(0, ecc_uncorrected=None, slowdown_c=None, **{**KNOWN, "memory_clock_mhz": None})
    for name in ("ecc_corrected", "ecc_corrected_aggregate", "ecc_uncorrected_aggregate"):
        unknown[name] = None
    unknown["pcie_rx_bytes_per_s"] = unknown["pcie_tx_bytes_per_s"] = unknown["fan_percent"] = None

    found = details(120, unknown)

    assert line_of(found, "clocks").endswith("memory N/A of 2619 MHz, P0")
    assert "      ECC      N/A" in found
    assert "      PCIe     generation 4 of 5, 8 of 16 lanes" in found
    assert "      cooling  slows down at N/A, switches off at 92 °C" in found


def test_every_program_on_a_card_is_listed_in_detail():
    """Also those that watchdog does not watch, and those of other containers."""
    programs = [
        {
            "pid": 7,
            "task": 7,
            "name": "a.ipynb",
            "memory_bytes": 9 * GIB,
            "utilization_percent": 80,
        },
        {"pid": 8, "task": None, "name": "Xorg", "memory_bytes": GIB, "utilization_percent": 0},
        {"pid": 9, "task": None, "name": None, "memory_bytes": None, "foreign": True},
    ]

    found = details(80, gpu(0, processes=programs))

    assert [
        "      PID PROGRAM                GPU-MEM GPU%",
        "        7 a.ipynb               9.00 GiB   80",
        "        8 Xorg                  1.00 GiB    0",
        "        9 not in this container      N/A  N/A",
    ] == found[-4:]


def test_a_part_of_a_card_has_its_own_memory_and_programs_and_no_clocks():
    """Clocks, fan and PCIe are those of the whole GPU."""
    part = gpu(0, id="GPU-0/gi3.ci0", parent_id="GPU-0", partition="GI 3 / CI 0", uuid="MIG-1")

    found = details(80, gpu(0, **KNOWN), part)

    assert ["", line_of(found, "GI 3 / CI 0"), "      id       GPU-0/gi3.ci0, MIG-1"] == found[-3:]


def test_the_details_name_the_driver():
    """Its version is in every report of a problem."""
    known = Status.read(
        status(gpus=[gpu(0)], hardware={**Hardware().to_json(), "driver_version": "570.1"})
    )

    assert ["", "Driver 570.1"] == gpu_details(known, 80, Style())[-2:]


def test_a_number_stays_with_its_unit_in_detail():
    """Also where the lines are short."""
    found = details(40, gpu(0, **KNOWN))

    assert not [line for line in found if line.split()[0] in ("MHz", "MHz,", "°C", "%", "W")]


def test_without_a_card_the_details_say_what_to_type():
    assert ["No GPU is watched here. Why: watchdog doctor --only driver"] == details()


@pytest.mark.parametrize("columns", [40, 60, 80, 110, 200])
def test_every_line_of_the_details_fits_the_terminal(columns):
    """Names of programs are as hostile as those of GPUs."""
    programs = [
        {"pid": 4194304, "task": None, "name": name, "memory_bytes": GIB} for name in HOSTILE_NAMES
    ]
    cards = [gpu(0, processes=programs, **KNOWN), dark(1, "lost")]
    cards += [gpu(2 + index, name=name) for index, name in enumerate(HOSTILE_NAMES)]

    found = details(columns, *cards)

    assert columns >= max(map(width, found))
    assert all(line.isprintable() for line in found)


def test_a_wide_terminal_shows_more_figures_of_a_card():
    """Bandwidth, clock, fan and state are left out one after the other."""
    card = gpu(0, **KNOWN)

    wide, *narrower = (card_lines(columns, False, card)[0] for columns in (200, 120, 80))

    assert ["43", "%", "bandwidth", "1755", "MHz", "0", "%", "fan", "P0"] == wide.split()[-9:]
    assert ["bandwidth" in line for line in narrower] == [True, False]
    assert all("612/700 W" in line for line in narrower)


@pytest.mark.parametrize("everything", [False, True])
def test_programs_of_others_are_named(everything):
    """At most three names, each once; the details list all."""
    names = ["ollama", "ollama", "Xorg", "blender", "obs"]
    others = [
        {"pid": pid, "task": None, "name": name, "memory_bytes": 2 * GIB}
        for pid, name in enumerate(names)
    ]

    found = card_lines(None, everything, gpu(0, processes=others))

    assert (
        "      5 programs that watchdog does not watch (ollama, Xorg, blender, ...), 10.0 GiB"
        in found
    )


def test_pids_of_others_are_named_where_everything_is_shown():
    """Elsewhere the output shows only their count."""
    busy = gpu(0, processes=[{"pid": 4711, "task": None, "memory_bytes": 8 * GIB}])

    short, long = ("\n".join(card_lines(None, everything, busy)) for everything in (False, True))

    assert "1 program that watchdog does not watch, " in short
    assert "1 program that watchdog does not watch (pid 4711), " in long


@pytest.mark.parametrize("state", ["lost", "silent"])
def test_what_is_on_a_card_that_does_not_answer_is_unknown_and_not_nothing(state):
    """A dash would claim that the task holds no memory there."""
    job = process(4711, "job.py", GIB, gpus=[], gpu_memory_bytes=None)

    def row(card):
        lines = render(Status.read(status(gpus=[card], tasks=[job])), NOW_UNIX_S)
        return next(line for line in lines if "job.py" in line)

    assert 2 == row(dark(0, state)).count("N/A") - row(gpu(0)).count("N/A")


def test_a_driver_that_was_updated_underneath_is_told_once():
    """Its incident reports it with the remedy, so the list of errors omits it."""
    said = "The NVIDIA driver was updated under the running system"
    found = {
        "id": "1", "resource": "gpu_fault", "subject": "driver", "label": "the graphics driver",
        "stage": "warn", "reason": said, "advice": ["Restart the machine."], "contributors": [],
        "opened_unix_s": NOW_UNIX_S,
    }  # fmt: skip
    error = {"source": "gpu.driver.updated", "message": f"{said}.", "remedy": "Restart."}

    lines = render(Status.read(status(incidents=[found], problems=[error])), NOW_UNIX_S)

    assert 1 == sum(said in line for line in lines[1:])
