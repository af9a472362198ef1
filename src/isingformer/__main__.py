"""`python -m isingformer` is the command `isingformer`."""

import sys

from .cli import main

sys.exit(main())
