"""The join reader: a stream of events becomes the reply that the engine would give without a stream.

Owns: which member of a reply is joined by which rule, and the reply made that way. Must never enter: relaying
a stream unchanged (reader.py of this format), requests.

``reader`` (which sample an event is about), ``merged_sample`` and ``merged_object`` (adding events up),
``event_decoder`` (the fast path), ``rules`` (the table). No setting uses joins yet; migration will.
"""
