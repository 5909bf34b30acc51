"""`python run_page.py PAGE URLS` runs one page in the current folder: a process of its own for each page."""

import json
import sys
from pathlib import Path

import doc_pages

doc_pages.run(Path(sys.argv[1]), json.loads(sys.argv[2]))
