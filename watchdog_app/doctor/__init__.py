"""Finds reasons why trainings may crash, before they do: `watchdog doctor`."""
