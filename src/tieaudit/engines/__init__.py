"""What other programs that read checkpoints make of embedding and head: a table of facts, how it is asked, and how answers are put."""
