"""What turns gradients into steps."""
