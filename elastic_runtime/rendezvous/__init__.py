"""Membership driven over a store and links.

`find` opens the store and learns who coordinates, `coordination` carries out what `core/coordinator` decides, `link`
is a node's side of the connection, `frames` is what goes over it.
"""
