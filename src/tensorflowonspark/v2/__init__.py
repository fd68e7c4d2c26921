"""The names of TensorFlowOnSpark 2.x, and nothing but translation onto what this project does.

Programs import them as ``tensorflowonspark.TFCluster`` and so on: the package ``tensorflowonspark`` adds this folder to
its path. So the modules here bear their names of 2.x, import each other by relative imports, and import everything else
of the project by its full name; those that begin with an underscore are for the others here.
"""
