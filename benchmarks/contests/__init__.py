"""What is raced: training and decoding of equal models, ours and the peers'."""
