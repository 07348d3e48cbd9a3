"""One round: clients train and return their heads, the server averages them."""
