"""`dump_segment.ipynb`, the modules of its plots and its example: files of notebooks/, which a wheel has in here.

    from sparklog.tools.inspection.notebook import overview, plots

The modules need matplotlib: the extra `notebook`.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
EXAMPLE = FOLDER / "kafka-log-dir"
"""A small log directory that a Kafka broker wrote."""
if not EXAMPLE.is_dir():
    # A checkout, not an installed wheel.
    REPOSITORY = Path(__file__).parents[4]
    FOLDER, EXAMPLE = REPOSITORY / "notebooks", REPOSITORY / "examples" / "data" / EXAMPLE.name
    __path__.append(str(FOLDER))
NOTEBOOK = FOLDER / "dump_segment.ipynb"
