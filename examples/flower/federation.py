"""A Flower federation of sites that each have a table of their own.

For rows that are not in a table, or a network of your own, give `client_app` a function that takes Flower's
context and returns a `fedgram.flower.Site`.
"""

from fedgram.flower import client_app, server_app

server = server_app()
client = client_app()
