"""Starts Spark's Python workers (``spark.python.daemon.module``) with TensorFlow imported.

By itself each worker imports it, for seconds of processor time, and Spark ends one that had no task for a minute.
"""

import os
import sys

from pyspark.daemon import manager

from tensorflowonspark.supervisor.forkserver.preload import preload

if __name__ == "__main__":
    # Neither workers nor what they start need the folder of this module.
    own = os.path.dirname(__file__)
    sys.path.remove(own)
    os.environ["PYTHONPATH"] = os.pathsep.join(
        each for each in os.environ["PYTHONPATH"].split(os.pathsep) if each != own
    )
    if sys.argv[1:] in ([], ["pyspark.worker"]):  # and not one of a data source in Python; Spark 3.5 names none
        preload()
    manager()
