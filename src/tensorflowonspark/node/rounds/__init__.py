"""Rounds of local SGD on a node: weights are exchanged with the other workers directly.

- `codec`: the changes of weights as bytes.
- `exchange`: one round, in which each worker owns a slice of the weights.
- `member`: a worker's part in all rounds, by the driver's messages.
"""
