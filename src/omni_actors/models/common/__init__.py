"""Model parts that several families share."""
