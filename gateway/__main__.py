"""``python -m gateway`` is ``tito-gateway``."""

from gateway.cli import main

if __name__ == "__main__":
    main()
