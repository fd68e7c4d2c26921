"""Which rows and which steps of a feed each node gets: computed of counts alone, for all kinds of feeds."""
