"""Training steps and losses of one's own, compared with one process of plain Keras; see `test_own_steps`.

``python -m tests.support.own_steps --help`` runs some of them by hand.
"""
