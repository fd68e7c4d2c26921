"""Export of trained models: in which format, under which number, and whether they compute what the model does."""
