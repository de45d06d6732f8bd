"""One file for each rule of a node, I10 to I15."""
