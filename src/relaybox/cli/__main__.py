"""`python -m relaybox.cli`, for when the script is not on the path."""

from . import main

main()
