"""h, the curvature of the negative log-likelihood in every weight: exact riders, recursions and slow references."""
