"""The other side of a gateway: sends a request and waits for its answer, for `outlast gateway send`.

requester        sends a request again until it is answered, whatever happens to the connection
client_request   what is sent;  client_answer: what comes back, and the files of a result
"""
