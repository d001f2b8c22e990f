"""One exchange at work: the phases of a request and its reply.

Owns: the handler, the live exchange and its attempts, request ids, aborts, deadlines, drain, the release of
request bodies, the query-of-death guard.
Must never enter: a dialect, sockets, the choice of a worker.
"""
