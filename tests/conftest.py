"""What all tests share: the sample function's folder on the path, as Lambda has it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "functions" / "stateless"))
