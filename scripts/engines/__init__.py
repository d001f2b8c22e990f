"""Real SGLang and vLLM servers on a CPU, for tests/engines and for manual tests.

Owns: installing the engines into separate environments, one tiny model with random weights, starting and
stopping servers on loopback ports. Must never enter: anything the product imports, and a test's expectations.

Needs Python 3.11 and only its standard library. See ``python -m scripts.engines --help``.
"""
