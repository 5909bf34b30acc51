"""`manage.py relaybox` and `manage.py flush`."""
