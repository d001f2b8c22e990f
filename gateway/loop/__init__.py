"""Event-loop tools: tasks, coroutine stepping, write batching, sockets, files, threads.

Owns: what is missing in asyncio, independent of HTTP.
Must never enter: HTTP, exchanges, workers.
"""
