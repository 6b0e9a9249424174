"""Prints, as JSON, where the TensorFlow of this Python is and which flags its headers want."""

import json
import os

import tensorflow as tf


def main() -> None:
    flags = tf.sysconfig.get_compile_flags()
    print(
        json.dumps(
            {
                "version": tf.__version__,
                "include": tf.sysconfig.get_include(),
                "library": os.path.abspath(tf.sysconfig.get_lib()),
                "defines": [flag[2:] for flag in flags if flag.startswith("-D")],
            }
        )
    )


if __name__ == "__main__":
    main()
