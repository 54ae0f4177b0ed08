"""Cases: training and decoding with equal models, ours and the peers'."""
