"""What happens beside the steps of training."""
