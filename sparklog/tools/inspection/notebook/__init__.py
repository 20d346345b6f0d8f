"""`dump_segment.ipynb`, its plotting modules and its example: the files of notebooks/, which a wheel installs here.

    from sparklog.tools.inspection.notebook import overview, plots

The modules require matplotlib, which the extra `notebook` installs.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER / "kafka-log-dir"
"""A small log directory written by a Kafka broker."""
if not EXAMPLE.is_dir():
    # A checkout, not an installed wheel.
    REPOSITORY = Path(__file__).parents[4]
    FOLDER, EXAMPLE = REPOSITORY / "notebooks", REPOSITORY / "examples" / "data" / EXAMPLE.name
    __path__.append(str(FOLDER))
NOTEBOOK = FOLDER / "dump_segment.ipynb"
