"""The notebook `dump_segment.ipynb`, its plotting modules and its example data. A wheel installs them from notebooks/.

    from sparklog.tools.inspection.notebook import overview, plots

The modules require matplotlib, which is installed by the extra `notebook`.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER / "kafka-log-dir"
"""A small log directory that was written by a Kafka broker."""
if not EXAMPLE.is_dir():
    # The package is imported from a checkout instead of an installed wheel.
    REPOSITORY = Path(__file__).parents[4]
    FOLDER, EXAMPLE = REPOSITORY / "notebooks", REPOSITORY / "examples" / "data" / EXAMPLE.name
    __path__.append(str(FOLDER))
NOTEBOOK = FOLDER / "dump_segment.ipynb"
