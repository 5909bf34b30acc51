"""The servers and Pythons that people run, fetched and put through the contract suites: `make engines`."""
