"""Workers as Kubernetes knows them: pods, or the EndpointSlices of Services, by label selector.

Owns: the API server's protocol (list, watch, what goes wrong in them) and what an object says of the workers
in it. Must never enter: writing to the cluster, what becomes of a worker in the fleet.

It is spoken over httpx, not through ``kubernetes-asyncio`` (looked at: 36.1.0). What is needed are two
requests, a list and a watch of one kind of object. The library brings 1,700 modules and 48 MB of its own and
twelve more packages, a second HTTP client (aiohttp) among them; importing it takes 0.4 s and 70 MB of memory,
in every process of a gateway. Its ``Watch`` would not spare the work that is left: it asks again from the
version that a 410 has just refused, builds an API client of its own per watch, and leaves lists again, pages,
backoff, ``Retry-After``, bookkeeping and a connection that died in silence to its caller.
"""
