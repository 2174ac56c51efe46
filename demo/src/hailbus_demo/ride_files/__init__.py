"""Readers of recorded rides: this project's schemas and the layouts that the TLC publishes."""

from hailbus_demo.ride_files.layouts import Columns, Layout, recognise
from hailbus_demo.ride_files.reader import ReadCounts, RideFileError, RideFiles

__all__ = ["Columns", "Layout", "ReadCounts", "RideFileError", "RideFiles", "recognise"]
