"""What is built from the tree, and released."""
