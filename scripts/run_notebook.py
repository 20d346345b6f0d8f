"""Run a notebook from top to bottom and store it with its outputs: `python scripts/run_notebook.py [FILE]...`

Outputs are kept in the repository: a reader on a forge sees the plots without running anything. What would change with
every run is left out (times of execution, the interpreter's version). A test compares the stored texts with those of a
new run, so they cannot go stale.
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
"""Of a stored plot: half the bytes of one with all colours, and no eye sees it."""


def executed(path: Path, parameters: str | None = None) -> NotebookNode:
    """The notebook after a run in a process of its own; `parameters` replaces the cell tagged so.

    The kernel takes sparklog from this repository. Raises `nbclient.exceptions.CellExecutionError` where a cell fails.
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
            # Outputs that take longer than this after a cell's end are dropped without an error.
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
    """Return the notebook, its plots drawn with few colours."""
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        if "image/png" in output.get("data", {}):
            stored = io.BytesIO()
            picture = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
            picture.quantize(PICTURE_COLOURS, dither=Image.Dither.NONE).save(stored, "png", optimize=True)
            output.data["image/png"] = base64.b64encode(stored.getvalue()).decode()
    return notebook


def main() -> int:
    """Run and store the notebooks that are named, or the one there is."""
    for path in map(Path, sys.argv[1:] or [str(NOTEBOOK)]):
        nbformat.write(with_small_pictures(executed(path.resolve())), path)
        print(f"ran {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
