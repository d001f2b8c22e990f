"""Maintenance scripts of the project; none of them is part of the product."""
