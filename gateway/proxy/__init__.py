"""One exchange at work: the phases of a request and its reply.

Owns: the handler, the live exchange and its attempts, aborts, deadlines, drain.
Must never enter: a dialect, sockets, the choice of a worker.
"""
