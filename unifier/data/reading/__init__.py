"""Reading files of every kind, and downloading them."""
