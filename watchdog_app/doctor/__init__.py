"""Finds why trainings crash before they do: `watchdog doctor`."""
