"""The replicated last-writer-wins map of cordons, which processes and gateways share.

Owns: its entries and which of two counts, a replica, its exchange with the store and with other processes.
Must never enter: what a reason means, the fleet, a store's kind.
"""
