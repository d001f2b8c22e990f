"""``python -m gateway`` is ``tito-gateway``."""

from gateway.commands.main import main

if __name__ == "__main__":
    main()
