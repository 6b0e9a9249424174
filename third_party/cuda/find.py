"""Prints the folder of the newest CUDA compiler among this Python's packages, or nothing.

The packages nvidia-cuda-nvcc and its companions unpack into site-packages/nvidia/cu<major>.
"""

import glob
import importlib.util
import os


def main() -> None:
    spec = importlib.util.find_spec("nvidia")
    folders = spec.submodule_search_locations if spec else None
    found = [nvcc for folder in folders or [] for nvcc in glob.glob(f"{folder}/cu[0-9]*/bin/nvcc")]
    if found:
        print(os.path.dirname(os.path.dirname(max(found))))


if __name__ == "__main__":
    main()
