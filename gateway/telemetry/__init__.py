"""What happened: metrics, the access log, log output.

Owns: counters, histograms, their text exposition, log lines.
Must never enter: decisions about a request.
"""
