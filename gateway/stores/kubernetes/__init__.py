"""Workers as Kubernetes knows them: pods, or the EndpointSlices of Services, by label selector.

Owns: the client of the API server (list, watch and their failures), and which workers an object describes.
Must never enter: writing to the cluster, what happens to a worker in the fleet.
"""
