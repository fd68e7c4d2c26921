"""What runs in the Spark driver: starting a cluster, feeding it, watching it, ending it. TensorFlow is not here."""
