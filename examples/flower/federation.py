"""A Flower app for sites that each have a table.

For other data or your own network, pass `client_app` a function from Flower's context to a
`fedgram.flower.Site`.
"""

from fedgram.flower import client_app, server_app

server = server_app()
client = client_app()
