"""One round of federated averaging: clients train and return layers, the server averages."""
