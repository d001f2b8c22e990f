"""Real SGLang and vLLM servers on a CPU, for tests/engines and for trying things by hand.

Owns: installing the engines into environments of their own, one tiny model with random weights, starting and
stopping servers on loopback ports. Must never enter: anything the product imports, and a test's expectations.

Needs Python 3.11 and nothing but its standard library. See ``python -m scripts.engines --help``.
"""
