"""The paper's tables and figures as experiments, hyperparameter search and cost estimates."""
