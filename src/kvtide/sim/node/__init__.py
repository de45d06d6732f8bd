"""Several engines and a node that they share: connections, lives, memory, and who dies when."""
