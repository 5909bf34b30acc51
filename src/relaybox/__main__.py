"""`python -m relaybox`, for when the script is not on the path."""

from .cli import main

main()
