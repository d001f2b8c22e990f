"""Chores of the project; none of them is part of the product."""
