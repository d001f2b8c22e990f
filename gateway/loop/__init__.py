"""Event-loop tools: tasks, coroutine stepping, write batching, sockets, files, threads.

Owns: additions to asyncio that do not depend on HTTP.
Must never enter: HTTP, exchanges, workers.
"""
