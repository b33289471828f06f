"""Hand-made trees of /sys: chips, zones and batteries, as kernels show them."""

from __future__ import annotations

from pathlib import Path


class DeviceTree:
    """A folder that replaces /sys."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, path: str, *attributes: str, **values: object) -> Path:
        """Write a folder of attributes, one value per file; `attributes` are `name=value` too."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        pairs = [each.split("=", 1) for each in attributes] + list(values.items())
        for name, value in pairs:
            data = value if isinstance(value, bytes) else f"{value}\n".encode()
            (folder / str(name)).write_bytes(data)
        return folder

    def hwmon(self, number: int, name: str, **values: object) -> Path:
        """Add a chip."""
        return self.write(f"class/hwmon/hwmon{number}", name=name, **values)

    def zone(self, number: int, kind: str, milli: object, *trips: tuple[str, object]) -> Path:
        """Add a thermal zone with its trip points."""
        folder = self.write(f"class/thermal/thermal_zone{number}", type=kind, temp=milli)
        for index, (what, where) in enumerate(trips):
            (folder / f"trip_point_{index}_type").write_text(f"{what}\n")
            (folder / f"trip_point_{index}_temp").write_text(f"{where}\n")
        return folder

    def supply(self, name: str, **values: object) -> Path:
        """Add a power supply: a battery or a plug."""
        return self.write(f"class/power_supply/{name}", **values)


LAPTOP_CPU = {
    "temp1_input": 61000,
    "temp1_label": "Package id 0",
    "temp1_max": 84000,
    "temp1_crit": 100000,
    "temp2_input": 59000,
    "temp2_label": "Core 0",
    "temp2_crit": 100000,
    "temp3_input": 63000,
    "temp3_label": "Core 1",
    "temp3_crit": 100000,
}
