"""Search for hyper-parameters: the trials of an Optuna study on the executors of a Spark application."""
