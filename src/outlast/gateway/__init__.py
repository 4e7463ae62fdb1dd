"""The gateway: requests from a message broker become runs, and every request gets one answer.

model           the words: deliveries, requests, failures, answers
directory       the paths of a gateway's files
settings        gateway.yaml;  templates: what a site allows requests to start
messages/       bodies of messages to requests, and answers to bodies: our own format, CloudEvents, Rodan
broker/         a thread that moves messages between the broker and this process, and does nothing else
record          the SQLite file with all messages, requests and answers: the only state
answers/        results by value or by reference, uploads
application     log-in at the application, and the token files that jobs use
retrying        what the engineer does about a request that is over
requester/      a client: sends a request and waits for its answer
"""
