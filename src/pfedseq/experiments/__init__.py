"""The paper's tables and figures as experiments, and what a search or a long run will cost."""
