"""Lengths of the 88,641 sequences of SQuAD 1.1, of which 384 tokens are the most.

The numbers are those of M. Krell, M. Kosec, S. Perez and A. Fitzgibbon, "Efficient Sequence Packing without
Cross-contamination", 2021 (arXiv 2107.02027), as the authors have published them with it.
"""

import numpy as np

LONGEST = 384
_COUNTS = """
    0 3 2 0 9 10 16 22 24 36 35 46 42 48 57 86 83 86 87 86 97 90 99 85 94 105 114 110 93 116 118 114 116 117 127 115
    155 137 145 157 151 153 149 163 157 134 150 144 132 166 162 177 160 149 151 138 156 148 176 163 182 188 182 177
    199 182 203 201 264 250 244 289 346 327 298 377 386 444 431 503 553 532 570 611 677 648 673 712 722 745 692 697
    747 754 741 777 781 825 813 836 777 776 756 789 790 765 753 729 748 772 766 760 741 725 729 759 732 730 730 741
    705 708 725 656 688 688 677 662 628 635 618 586 527 562 619 562 578 538 558 582 541 575 526 556 498 529 486 528
    541 482 521 483 466 514 459 447 436 383 401 408 381 369 364 381 420 391 388 358 365 357 358 355 297 290 267 308
    329 304 332 289 282 304 242 263 288 238 257 271 288 277 264 253 239 217 260 214 247 237 212 205 193 200 208 195
    193 201 187 170 176 195 156 201 179 159 183 169 178 163 153 171 144 138 181 165 171 161 159 166 142 138 151 155
    134 141 132 123 119 109 125 123 131 135 115 108 102 117 105 99 84 100 85 85 85 95 122 105 114 113 100 80 96 86
    79 80 87 92 73 73 64 76 72 77 67 60 71 77 79 72 55 67 42 59 65 72 49 43 62 48 50 54 45 42 53 56 45 43 32 30 36
    42 37 45 28 41 31 44 35 36 47 47 48 65 32 23 35 38 20 23 22 21 27 20 26 18 18 22 17 17 14 26 15 20 22 19 24 17
    15 20 20 22 22 17 20 16 21 16 23 12 14 1054
"""  # of each length up to the longest


def lengths(sequences, seed=0):
    """Return so many lengths in that distribution, in an order that follows from a seed."""
    counts = np.array(_COUNTS.split(), np.int64)
    known = np.arange(LONGEST - len(counts) + 1, LONGEST + 1)
    # Evenly over the distribution: as many of each length as it has.
    places = ((np.arange(sequences) + 0.5) * counts.sum() / sequences).astype(np.int64)
    found = known[np.searchsorted(np.cumsum(counts), places, side="right")]
    return np.random.default_rng(seed).permutation(found)
