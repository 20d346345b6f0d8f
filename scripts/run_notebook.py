"""Run a notebook and store it with its outputs: `python scripts/run_notebook.py [FILE]...`

The outputs are part of the repository, so that readers on a Git host see the plots without running the notebook. Values
that differ between runs, such as execution times and the version of the interpreter, are removed. A test compares the
stored text outputs with the outputs of a new run, so the stored outputs are always up to date.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]
NOTEBOOK = REPOSITORY / "notebooks" / "dump_segment.ipynb"
TIMEOUT_SECONDS = 300
PICTURE_COLOURS = 64
"""Number of colors of a stored plot. This halves the size of the plot without a visible difference."""


def executed(path: Path, parameters: str | None = None) -> NotebookNode:
    """Run a notebook in a separate process and return it. `parameters` replaces the cell with the tag `parameters`.

    The kernel imports sparklog from this repository. Raises `nbclient.exceptions.CellExecutionError` if a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if parameters is not None and "parameters" in cell.metadata.get("tags", ()):
            cell.source = parameters
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(REPOSITORY), before)))
    try:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT_SECONDS,
            startup_timeout=TIMEOUT_SECONDS,
            # nbclient drops outputs that arrive later than this after the end of a cell, without an error.
            iopub_timeout=TIMEOUT_SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(path.parent)}},
        )
        client.execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def with_small_pictures(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook after reducing the number of colors of its plots."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "image/png" in output.get("data", {}):
            stored = io.BytesIO()
            picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
            picture.quantize(PICTURE_COLOURS, dither=Image.Dither.NONE).save(stored, "png", optimize=True)
            output.data["image/png"] = base64.b64encode(stored.getvalue()).decode()
    return notebook


def main() -> int:
    """Run and store the given notebooks, or `NOTEBOOK` by default."""
    for path in map(Path, sys.argv[1:] or [str(NOTEBOOK)]):
        nbformat.write(with_small_pictures(executed(path.resolve())), path)
        print(f"ran {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
