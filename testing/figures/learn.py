"""Trains a model with scikit-learn on random data, and prints the seconds of the training as JSON.

Usage: learn.py logistic|boosting|kmeans SCALE. A scale of 1 is the size for a measurement. The data
are made before the clock starts, so their first writes do not count.
"""

import json
import sys
import time

import numpy
from sklearn.cluster import KMeans
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.linear_model import LogisticRegression

SEED = 7


def samples(rows, columns):
    """Returns random samples and labels that depend on them."""
    random = numpy.random.default_rng(SEED)
    data = random.standard_normal((rows, columns))
    weights = random.standard_normal(columns)
    noise = random.standard_normal(rows)
    return data, (data @ weights + noise > 0).astype(numpy.int8)


def logistic(scale):
    """Logistic regression: each step reads all samples in order."""
    data, labels = samples(int(400_000 * scale), 40)
    return lambda: LogisticRegression(max_iter=20, tol=1e-9).fit(data, labels).coef_.sum()


def boosting(scale):
    """Gradient boosting with exact splits: sorts the samples of each node by each feature."""
    data, labels = samples(int(150_000 * scale), 20)
    model = GradientBoostingClassifier(n_estimators=3, max_depth=3, random_state=SEED)
    return lambda: model.fit(data, labels).score(data[:1000], labels[:1000])


def kmeans(scale):
    """K-means: each step reads all samples in order, and computes more than logistic regression."""
    data, _ = samples(int(400_000 * scale), 40)
    model = KMeans(n_clusters=8, n_init=1, max_iter=8, tol=0, init="random", random_state=SEED)
    return lambda: model.fit(data).inertia_


def main(name, scale):
    """Trains once."""
    train = {"logistic": logistic, "boosting": boosting, "kmeans": kmeans}[name](scale)
    began = time.monotonic()
    result = float(train())
    print(json.dumps({"seconds": time.monotonic() - began, "result": round(result, 6)}))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
