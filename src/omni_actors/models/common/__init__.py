"""Model parts shared by several families."""
