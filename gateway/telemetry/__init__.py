"""Metrics, the access log and the log.

Owns: counters, histograms, their text exposition, log lines.
Must never enter: decisions about a request.
"""
