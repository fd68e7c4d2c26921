"""wip"""
def wrap_trainer(t): pass
