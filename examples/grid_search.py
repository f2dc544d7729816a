"""GeoF in scikit-learn: cross-validation, a grid search, a pipeline, on a graph of neighbours.

python examples/grid_search.py
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split
from sklearn.neighbors import kneighbors_graph
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from geof import GeoFNodeClassifier


def main(epochs: int = 40) -> float:
    """Return the accuracy on held-out wines."""
    x, y = load_wine(return_X_y=True)
    x = StandardScaler().fit_transform(x)
    # Wines alike in all their measurements are linked; nodes are rows of x.
    graph = (x, kneighbors_graph(x, 5))
    nodes = np.arange(len(y))
    train, test = train_test_split(nodes, test_size=0.5, stratify=y, random_state=0)

    model = GeoFNodeClassifier(graph=graph, epochs=epochs, random_state=0)
    scores = cross_val_score(model, train, y[train], cv=3)
    print(f"accuracy by cross-validation {scores.mean():.3f}")

    search = GridSearchCV(model, {"options.steps": [1, 2], "learning_rate": [0.01, 0.03]}, cv=2)
    search.fit(train, y[train])
    right = search.score(test, y[test])
    print(f"best {search.best_params_}, on held-out wines {right:.3f}")

    alone = make_pipeline(StandardScaler(), LogisticRegression())
    alone.fit(x[train], y[train])
    print(f"the measurements alone {alone.score(x[test], y[test]):.3f}")
    return float(right)


if __name__ == "__main__":
    main()
