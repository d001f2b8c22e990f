"""The benchmarks, which measure the cost of the gateway beside other routers: ``python -m benchmarks``
(``make bench``).

Owns: loads, the processes they need, the measuring and the report. Must never enter: an import of the
gateway, which is measured from outside, as its users run it.
"""
