"""The least a Django project needs. SHOP_DB names the database file."""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
SECRET_KEY = "only an example"  # noqa: S105 - not a secret
ALLOWED_HOSTS = ["*"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "project.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DB", FOLDER / "shop.db"),
    }
}
