"""Readers of benchmark results: text of a file in, runs and step times out, whatever tool wrote it."""

from predictor.anchors.import_formats.detect import FORMATS, read_benchmark
from predictor.anchors.import_formats.run import BenchRun, Latency, ParsedFile, RequestTimes, StepRun

__all__ = ["FORMATS", "BenchRun", "Latency", "ParsedFile", "RequestTimes", "StepRun", "read_benchmark"]
