"""TextRank (Mihalcea and Tarau, 2004) for keywords, with the standard library only.

Usage: textrank.py SCALE. A scale of 1 is the size for a measurement. The text is random: its words
have the frequencies of Zipf's law. Words within a window are neighbours in a graph; the rank of a
word is that of PageRank on the graph. Prints the seconds of graph and ranking, and the best word,
as JSON. The graph consists of many small objects, so each step jumps through all of the memory.
"""

import itertools
import json
import random
import sys
import time

SEED = 7
WINDOW = 2
DAMPING = 0.85
STEPS = 5


def text(words, vocabulary):
    """Returns the numbers of the words of a random text."""
    weights = itertools.accumulate(1 / rank for rank in range(1, vocabulary + 1))
    chosen = random.Random(SEED)
    order = list(range(vocabulary))
    chosen.shuffle(order)
    return [order[rank] for rank in chosen.choices(range(vocabulary), cum_weights=list(weights), k=words)]


def graph(words, vocabulary):
    """Returns the neighbours of each word, with the number of times that they are neighbours."""
    neighbours = [{} for _ in range(vocabulary)]
    for at, word in enumerate(words):
        for other in words[at + 1 : at + 1 + WINDOW]:
            if other != word:
                neighbours[word][other] = neighbours[word].get(other, 0) + 1
                neighbours[other][word] = neighbours[other].get(word, 0) + 1
    return neighbours


def rank(neighbours):
    """Returns the rank of each word."""
    totals = [sum(edges.values()) or 1 for edges in neighbours]
    ranks = [1.0] * len(neighbours)
    for _ in range(STEPS):
        ranks = [
            1 - DAMPING + DAMPING * sum(count * ranks[word] / totals[word] for word, count in edges.items())
            for edges in neighbours
        ]
    return ranks


def main(scale):
    """Ranks the words of one text."""
    vocabulary = int(60_000 * scale)
    words = text(int(900_000 * scale), vocabulary)
    began = time.monotonic()
    neighbours = graph(words, vocabulary)
    ranks = rank(neighbours)
    seconds = time.monotonic() - began
    best = max(range(vocabulary), key=ranks.__getitem__)
    print(json.dumps({"seconds": seconds, "result": best}))


if __name__ == "__main__":
    main(float(sys.argv[1]))
